/* A growing text for building a page. The first failure sticks, so builders check once at the end. */
#ifndef TRD_REPORT_TEXT_H
#define TRD_REPORT_TEXT_H

#include <stddef.h>

#include "base/status.h"

/* Zero-initialize; free with trd__text_free. */
typedef struct trd__text {
    char *data; /* NUL-terminated once something was put */
    size_t bytes, capacity;
    trd_status status;
} trd__text;

void trd__text_put(trd__text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts a text with the five characters that mean something in HTML replaced. */
void trd__text_put_escaped(trd__text *text, const char *raw);
void trd__text_free(trd__text *text);

#endif
