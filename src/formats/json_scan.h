/* What the JSON library does not check itself, found before it sees the text. */
#ifndef TRD_FORMATS_JSON_SCAN_H
#define TRD_FORMATS_JSON_SCAN_H

#include <stddef.h>

enum { TRD__JSON_DEPTH = 512 };

/* Reason why text cannot be JSON, with *at its offset; NULL when the scan found nothing (which does not make
 * it JSON: the parser still judges the grammar). */
const char *trd__json_scan(const char *text, size_t bytes, size_t *at);

#endif
