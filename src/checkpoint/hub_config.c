/* Rewrites a config.json for export. transformers 5 reads "rope_parameters", earlier versions "rope_theta"
 * and "rope_scaling"; a file that has both is read by all of them. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "checkpoint/hub_export.h"
#include "formats/json.h"

static const double default_theta = 10000;

/* Keys of the source that are written anew, in whatever form it had them. */
static const char *const replaced[] = {"rope_theta", "rope_scaling", "rope_parameters", "dtype",
                                       "torch_dtype"};

typedef struct rope {
    double theta;
    const char *type;   /* "default" when the positions are not scaled */
    trd__json settings; /* the object with the scaling's numbers; absent: none */
} rope;

static trd_status read_rope(trd__json root, rope *r)
{
    *r = (rope){default_theta, "default", {0}};
    trd__json parameters = trd__json_find(root, "rope_parameters"),
              scaling = trd__json_find(root, "rope_scaling");
    TRD_TRY(trd__json_opt_f64(root, "rope_theta", &r->theta));
    if (trd__json_kind_of(parameters) == TRD__JSON_OBJECT)
        r->settings = parameters;
    else if (trd__json_kind_of(scaling) == TRD__JSON_OBJECT)
        r->settings = scaling;
    TRD_TRY(trd__json_opt_f64(r->settings, "rope_theta", &r->theta));
    TRD_TRY(trd__json_opt_string(r->settings, "type", &r->type)); /* the oldest spelling */
    return trd__json_opt_string(r->settings, "rope_type", &r->type);
}

static void put_settings(trd__json_writer *out, const rope *r)
{
    trd__json_put_string(out, "rope_type", r->type);
    for (trd__json v = trd__json_first(r->settings); trd__json_exists(v); v = trd__json_next(v)) {
        const char *key = trd__json_key(v);
        if (strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0 || strcmp(key, "rope_theta") == 0)
            continue;
        trd__json_write_key(out, key);
        trd__json_write_value(out, v);
    }
}

static void put_rope(trd__json_writer *out, const rope *r)
{
    trd__json_put_f64(out, "rope_theta", r->theta);
    trd__json_write_key(out, "rope_scaling");
    if (strcmp(r->type, "default") == 0) {
        trd__json_write_null(out);
    } else {
        trd__json_open_object(out);
        put_settings(out, r);
        trd__json_close(out);
    }
    trd__json_write_key(out, "rope_parameters");
    trd__json_open_object(out);
    trd__json_put_f64(out, "rope_theta", r->theta);
    put_settings(out, r);
    trd__json_close(out);
}

static bool is_replaced(const char *key)
{
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++)
        if (strcmp(key, replaced[i]) == 0) return true;
    return false;
}

static trd_status write_config(trd__json root, trd_dtype dtype, trd__json_writer *out)
{
    rope r;
    TRD_TRY(trd__json_as_object(root));
    TRD_TRY(read_rope(root, &r));
    trd__json_open_object(out);
    for (trd__json v = trd__json_first(root); trd__json_exists(v); v = trd__json_next(v)) {
        if (is_replaced(trd__json_key(v))) continue;
        trd__json_write_key(out, trd__json_key(v));
        trd__json_write_value(out, v);
    }
    trd__json_put_string(out, "dtype", trd_dtype_name(dtype));
    trd__json_put_string(out, "torch_dtype", trd_dtype_name(dtype)); /* transformers 4 */
    put_rope(out, &r);
    trd__json_close(out);
    return trd__json_finish(out);
}

trd_status trd__hub_config(const char *config, trd_dtype dtype, char **text)
{
    trd__json_doc *doc;
    trd__json_writer out = {.indent = 2};
    *text = NULL;
    TRD_TRY(trd__json_parse(config, strlen(config), "config.json", &doc));
    trd_status status = write_config(trd__json_root(doc), dtype, &out);
    trd__json_free(doc);
    if (status)
        trd__json_writer_free(&out);
    else
        *text = out.text;
    return status;
}
