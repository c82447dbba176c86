/* The memory planner: live buffers never overlap, and random programs stay close to the lower bound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/planner.h"
#include "base/rng.h"

enum { BUFFERS = 300 };

static void check(const trd__lifetime *b, int count, uint64_t arena, uint64_t bound)
{
    assert_true(arena >= bound);
    for (int i = 0; i < count; i++) {
        assert_int_equal(b[i].offset % 64, 0);
        assert_true(b[i].offset + b[i].bytes <= arena);
        for (int j = 0; j < i; j++) {
            int live = b[i].first <= b[j].last && b[j].first <= b[i].last;
            int apart = b[i].offset + b[i].bytes <= b[j].offset || b[j].offset + b[j].bytes <= b[i].offset;
            assert_true(!live || apart);
        }
    }
}

/* Forward activations that live until the mirrored backward step, and short-lived temporaries between. */
static int training_like(trd__lifetime *b, uint64_t seed)
{
    int layers = BUFFERS / 3;
    for (int i = 0; i < layers; i++) {
        uint64_t kind = 1 + trd__rng_below(seed, 1, (uint64_t)i, 4);
        b[3 * i] = (trd__lifetime){.bytes = kind << 16, .first = i, .last = 2 * layers - i};
        b[3 * i + 1] = (trd__lifetime){.bytes = kind << 15, .first = i, .last = i + 1};
        b[3 * i + 2] =
            (trd__lifetime){.bytes = kind << 15, .first = 2 * layers - i, .last = 2 * layers - i + 1};
    }
    return 3 * layers;
}

static void stays_near_the_bound(void **state)
{
    (void)state;
    trd__lifetime buffers[BUFFERS];
    for (uint64_t seed = 0; seed < 10; seed++) {
        int count = training_like(buffers, seed);
        uint64_t arena, bound;
        assert_int_equal(trd__plan_memory(buffers, count, &arena, &bound), TRD_OK);
        check(buffers, count, arena, bound);
        assert_true(arena <= bound + bound / 20);
    }
}

static void never_overlaps(void **state)
{
    (void)state;
    trd__lifetime buffers[BUFFERS];
    for (uint64_t seed = 0; seed < 20; seed++) {
        for (uint64_t i = 0; i < BUFFERS; i++) {
            int first = (int)trd__rng_below(seed, 2, i, 200);
            buffers[i] = (trd__lifetime){.bytes = trd__rng_below(seed, 3, i, 5000),
                                         .first = first,
                                         .last = first + (int)trd__rng_below(seed, 4, i, 40)};
        }
        uint64_t arena, bound;
        assert_int_equal(trd__plan_memory(buffers, BUFFERS, &arena, &bound), TRD_OK);
        check(buffers, BUFFERS, arena, bound);
    }
}

static void plans_nothing(void **state)
{
    (void)state;
    uint64_t arena = 1, bound = 1;
    assert_int_equal(trd__plan_memory(NULL, 0, &arena, &bound), TRD_OK);
    assert_int_equal(arena, 0);
    assert_int_equal(bound, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stays_near_the_bound),
                                       cmocka_unit_test(never_overlaps), cmocka_unit_test(plans_nothing)};
    return cmocka_run_group_tests_name("backend/planner", tests, NULL, NULL);
}
