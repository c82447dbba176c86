/* A list of names for one message: the first few are shown, all are counted. Zero-initialize. */
#ifndef TRD_BASE_NAME_LIST_H
#define TRD_BASE_NAME_LIST_H

#include <stddef.h>

enum { TRD__NAME_LIST_TEXT = 768 };

typedef struct trd__name_list {
    char text[TRD__NAME_LIST_TEXT]; /* "a, b, c, ..." */
    size_t used;
    int count;
} trd__name_list;

void trd__name_list_add(trd__name_list *list, const char *name);
/* "no tensor", or "3 tensors (a, b, c)"; returns text. */
const char *trd__name_list_text(const trd__name_list *list, char *text, size_t bytes);

#endif
