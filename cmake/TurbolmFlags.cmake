# Compiler flags of everything: the interface library `turbolm_flags`.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# Assertions stay on: they guard our own invariants and none is in an inner loop.
set(CMAKE_C_FLAGS_RELEASE "-O2 -g1")

add_library(turbolm_flags INTERFACE)
target_compile_definitions(turbolm_flags INTERFACE _POSIX_C_SOURCE=200809L)
# Contraction would let results differ between compilers; kernels ask for fma by name.
target_compile_options(turbolm_flags INTERFACE -ffp-contract=off
    -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wundef -Wcast-qual)
if(TURBOLM_WERROR)
    target_compile_options(turbolm_flags INTERFACE -Werror)
endif()

if(TURBOLM_SANITIZE)
    set(turbolm_sanitize -fsanitize=${TURBOLM_SANITIZE} -fno-omit-frame-pointer)
    if(TURBOLM_SANITIZE MATCHES "undefined")
        list(APPEND turbolm_sanitize -fno-sanitize-recover=all)
    endif()
    target_compile_options(turbolm_flags INTERFACE ${turbolm_sanitize})
    target_link_options(turbolm_flags INTERFACE ${turbolm_sanitize})
endif()
