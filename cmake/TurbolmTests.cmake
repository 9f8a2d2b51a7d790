# C tests: one cmocka program per tests/test_*.c, linked with every internal
# symbol; helpers shared by several live in tests/support/. The fuzz targets are
# built with a plain main that replays their corpora.
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
set(test_dir ${CMAKE_BINARY_DIR}/tests)

file(GLOB support_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/support/*.c)
file(GLOB test_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/test_*.c)
foreach(source ${test_sources})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source} ${support_sources})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${test_dir})
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_compile_definitions(${name} PRIVATE TURBOLM_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
    target_link_libraries(${name} PRIVATE turbolm_internal PkgConfig::CMOCKA)
endforeach()

file(GLOB fuzz_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
foreach(source ${fuzz_sources})
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE fuzz_ replay_ name ${name})
    add_executable(${name} ${source} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay.c)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${test_dir})
    target_link_libraries(${name} PRIVATE turbolm_internal)
endforeach()
