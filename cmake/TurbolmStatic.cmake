# libturbolm.a: one relocatable object whose hidden symbols are made local, so
# that the static library, like the shared one, offers nothing but tlm_*.
# Sanitizers keep tables of their own per object, which do not survive the
# merge: in such builds the internal library stands in.
add_library(turbolm_static STATIC IMPORTED GLOBAL)
if(TURBOLM_SANITIZE)
    set(turbolm_a ${CMAKE_BINARY_DIR}/libturbolm-internal.a)
    add_custom_target(turbolm_archive DEPENDS turbolm_internal)
else()
    set(turbolm_a ${CMAKE_BINARY_DIR}/libturbolm.a)
    set(turbolm_o ${CMAKE_BINARY_DIR}/libturbolm.o)
    add_custom_command(OUTPUT ${turbolm_a}
        COMMAND ${CMAKE_LINKER} -r -o ${turbolm_o} --whole-archive $<TARGET_FILE:turbolm_internal>
        COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${turbolm_o}
        COMMAND ${CMAKE_COMMAND} -E rm -f ${turbolm_a}
        COMMAND ${CMAKE_AR} rcs ${turbolm_a} ${turbolm_o}
        COMMAND ${CMAKE_COMMAND} -E rm -f ${turbolm_o}
        DEPENDS turbolm_internal
        COMMENT "Static library with public symbols only"
        VERBATIM)
    add_custom_target(turbolm_archive ALL DEPENDS ${turbolm_a})
endif()
set_target_properties(turbolm_static PROPERTIES IMPORTED_LOCATION ${turbolm_a})
target_include_directories(turbolm_static INTERFACE include)
target_link_libraries(turbolm_static INTERFACE turbolm_flags ${TURBOLM_LIBS})
