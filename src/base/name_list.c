/* Lists of tensor names for messages. Invariant: the text always ends in NUL and says when it is shortened.
 */
#include "base/name_list.h"

#include <stdio.h>

enum { SHOWN = 8 };

void trd__name_list_add(trd__name_list *list, const char *name)
{
    size_t room = sizeof list->text - list->used;
    list->count++;
    if (list->count > SHOWN + 1) return;
    int wrote = snprintf(list->text + list->used, room, "%s%s", list->used ? ", " : "",
                         list->count > SHOWN ? "..." : name);
    if (wrote > 0) list->used += (size_t)wrote < room ? (size_t)wrote : room - 1;
}

const char *trd__name_list_text(const trd__name_list *list, char *text, size_t bytes)
{
    if (list->count == 0)
        snprintf(text, bytes, "no tensor");
    else
        snprintf(text, bytes, "%d tensor%s (%s)", list->count, list->count == 1 ? "" : "s", list->text);
    return text;
}
