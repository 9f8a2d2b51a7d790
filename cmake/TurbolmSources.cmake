# Library sources: everything under src/, with the kernel folders of this
# processor family and their flags. An instruction set is one line here.
file(GLOB_RECURSE turbolm_all CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*.c)
set(TURBOLM_SOURCES ${turbolm_all})
list(FILTER TURBOLM_SOURCES EXCLUDE REGEX "/src/backend/cpu/(avx2|avx512|avx512vnni|neon)/")

set(TURBOLM_AVX2_FLAGS -mavx2 -mfma -mf16c -mbmi2)
set(TURBOLM_AVX512_FLAGS ${TURBOLM_AVX2_FLAGS} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(TURBOLM_AVX512VNNI_FLAGS ${TURBOLM_AVX512_FLAGS} -mavx512vnni -mavx512bf16)
set(TURBOLM_NEON_FLAGS "")
set(TURBOLM_NEON_DOT_FLAGS -march=armv8.2-a+dotprod)

# turbolm_isa(folder flags...): adds src/backend/cpu/<folder>/*.c with these flags.
function(turbolm_isa folder)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cpu/${folder}/*.c)
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS ${ARGN})
    if(folder STREQUAL neon)
        set(dot ${sources})
        list(FILTER dot INCLUDE REGEX "_dot\\.c$")
        set_property(SOURCE ${dot} APPEND PROPERTY COMPILE_OPTIONS ${TURBOLM_NEON_DOT_FLAGS})
    endif()
    set(TURBOLM_SOURCES ${TURBOLM_SOURCES} ${sources} PARENT_SCOPE)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    set(TURBOLM_X86 ON)
    turbolm_isa(avx2 ${TURBOLM_AVX2_FLAGS})
    turbolm_isa(avx512 ${TURBOLM_AVX512_FLAGS})
    turbolm_isa(avx512vnni ${TURBOLM_AVX512VNNI_FLAGS})
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    turbolm_isa(neon ${TURBOLM_NEON_FLAGS})
endif()

# Inner loops live in these folders.
set(turbolm_hot ${TURBOLM_SOURCES})
list(FILTER turbolm_hot INCLUDE REGEX "/src/(backend|quant|kvformat)/")
if(turbolm_hot)
    set_property(SOURCE ${turbolm_hot} APPEND PROPERTY COMPILE_OPTIONS -O3)
endif()
