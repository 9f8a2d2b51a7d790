# Kernel checks: tests/check_*.c, each comparing every slot of every instruction
# set with the scalar one. Three builds: this machine's sets; AVX-512 emulated
# with SIMDe, for machines without it; and, through TURBOLM_KERNELS_ONLY and
# cmake/aarch64.cmake, NEON for an emulator.
file(GLOB check_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/check_*.c)
set(check_dir ${CMAKE_BINARY_DIR}/tests)

# Without the rest of the library the checks still get what kernels may use: the
# layers up to backend, less what needs other libraries.
if(TURBOLM_KERNELS_ONLY)
    set(kernel_sources ${TURBOLM_SOURCES})
    list(FILTER kernel_sources INCLUDE REGEX "/src/(base|quant|kvformat|backend)/")
    list(FILTER kernel_sources EXCLUDE REGEX "/src/base/json\\.c$")
    add_library(turbolm_kernels STATIC ${kernel_sources})
    target_include_directories(turbolm_kernels PUBLIC include src)
    target_link_libraries(turbolm_kernels PUBLIC turbolm_flags m pthread)
else()
    add_library(turbolm_kernels ALIAS turbolm_internal)
endif()

function(turbolm_check name library)
    add_executable(${name} ${ARGN})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${check_dir})
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
    target_link_libraries(${name} PRIVATE ${library})
    if(TURBOLM_KERNELS_ONLY)
        target_link_options(${name} PRIVATE -static)
    endif()
endfunction()

foreach(source ${check_sources})
    get_filename_component(name ${source} NAME_WE)
    turbolm_check(${name} turbolm_kernels ${source})
endforeach()

find_path(SIMDE_INCLUDE simde/x86/avx512.h)
if(TURBOLM_X86 AND SIMDE_INCLUDE AND NOT TURBOLM_SANITIZE)
    add_subdirectory(tests/emulated)
endif()
