/* Recognizes what people hand over by mistake, from a file's first bytes, so that every reader says the same.
 */
#ifndef TRD_FORMATS_SNIFF_H
#define TRD_FORMATS_SNIFF_H

#include <stddef.h>

/* What the bytes look like and what to do about it ("is a Git LFS pointer, ...; run git lfs pull"), to be put
 * after a file's name; NULL when they look like none of the known mistakes. Ask once the bytes are known to
 * be wrong: prefixes of two bytes can be anything. */
const char *trd__sniff_mistake(const void *data, size_t bytes);

#endif
