# Tests of the backend "pjrt": its own, and tests that run once more with it as their backend. They need the plugin
# that tools/fetch-pjrt takes, or the one that the CMake variable PJRT_PLUGIN names; without one they are skipped, and
# where threads are checked: the plugin's own locks are not seen there.
set(TRD_PJRT_AGAIN backend/execute engine/update engine/metrics engine/views engine/restore)

find_file(PJRT_PLUGIN pjrt_c_api_cpu_plugin.so HINTS ${CMAKE_SOURCE_DIR}/.pjrt NO_DEFAULT_PATH)
set(TRD_PJRT_RUNS OFF)
if(TRD_PJRT AND PJRT_PLUGIN AND NOT TRD_SANITIZE MATCHES "thread")
  set(TRD_PJRT_RUNS ON)
endif()
if(TRD_PJRT)
  foreach(name plugin no_plugin)
    add_library(trd_fake_${name} MODULE support/plugins/fake_plugin.c)
    target_include_directories(trd_fake_${name} SYSTEM PRIVATE ${PJRT_INCLUDE_DIR})
  endforeach()
  target_compile_definitions(trd_fake_no_plugin PRIVATE TRD_NO_ENTRY)
  target_compile_definitions(test_backend_pjrt_plugin PRIVATE
    TRD_A_PLUGIN="$<TARGET_FILE:trd_fake_plugin>" TRD_NO_PLUGIN="$<TARGET_FILE:trd_fake_no_plugin>")
  add_dependencies(test_backend_pjrt_plugin trd_fake_plugin trd_fake_no_plugin)
  foreach(name plugin queue)
    target_include_directories(test_backend_pjrt_${name} SYSTEM PRIVATE ${PJRT_INCLUDE_DIR})
  endforeach()
endif()
if(TRD_PJRT_RUNS)
  set_tests_properties(backend/pjrt_plugin backend/pjrt_cache PROPERTIES ENVIRONMENT PJRT_PLUGIN_LIBRARY_PATH=${PJRT_PLUGIN})
endif()
# The op cases have a mode of their own.
set(TRD_PJRT_OPS leaf unary binary compare reduce shape index matmul accumulate rms_norm swiglu rope dropout attention
  token_logprobs)
foreach(name ${TRD_PJRT_OPS})
  list(APPEND TRD_PJRT_AGAIN ops/${name})
  set(TRD_PJRT_ARGUMENTS_ops/${name} --mode pjrt)
endforeach()
foreach(name ${TRD_PJRT_AGAIN})
  string(REPLACE "/" "_" target "test_${name}")
  if(TRD_PJRT_RUNS)
    add_test(NAME pjrt/${name} COMMAND ${target} ${TRD_PJRT_ARGUMENTS_${name}} WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
    set_tests_properties(pjrt/${name} PROPERTIES
      ENVIRONMENT "TRD_TEST_BACKEND=pjrt;TRD_TEST_CACHE=${CMAKE_BINARY_DIR}/pjrt-cache;PJRT_PLUGIN_LIBRARY_PATH=${PJRT_PLUGIN}")
  else()
    add_test(NAME pjrt/${name} COMMAND sh -c "echo 'no plugin (tools/fetch-pjrt takes it), or threads are checked'; exit 77")
    set_tests_properties(pjrt/${name} PROPERTIES SKIP_RETURN_CODE 77)
  endif()
endforeach()
