/* Choosing parameters by regular expressions over their names, which are the hub's. */
#include "nn/model.h"

#include "base/regex.h"

trd_status trd__model_match(const trd_model *model, const char *key, const char *pattern, bool *matched)
{
    pcre2_code *regex;
    pcre2_match_data *match = NULL;
    TRD_TRY(trd__regex_compile(pattern, 0, TRD_INVALID_ARGUMENT, key, &regex));
    trd_status status = trd__regex_match_data(regex, &match);
    for (int i = 0; !status && i < model->parameter_count; i++)
        status = trd__regex_find(regex, match, model->parameters[i].name, &matched[i]);
    pcre2_match_data_free(match);
    pcre2_code_free(regex);
    if (status == TRD_OK || status == TRD_NO_MEMORY) return status;
    return trd__fail_in(TRD_INVALID_ARGUMENT, "%s: the pattern \"%.80s\"", key, pattern);
}
