# The program: tools/ over the public headers and the static library, and the
# other names it answers to as links beside it.
file(GLOB turbolm_tools CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/*.c)
if(NOT turbolm_tools)
    return()
endif()

# mlx_lm.<command> for every working command that mlx-lm has too, and mlx_turboquant's name.
set(own_commands inspect logits tokenize template turboquant)
set(TURBOLM_PROGRAM_NAMES turboquant)
set(command_table ${CMAKE_SOURCE_DIR}/tools/commands.def)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${command_table})
file(STRINGS ${command_table} rows REGEX "^READY[(]")
foreach(row ${rows})
    string(REGEX REPLACE "^READY[(]([a-z_]+)[)].*" "\\1" command "${row}")
    if(NOT command IN_LIST own_commands)
        list(APPEND TURBOLM_PROGRAM_NAMES mlx_lm.${command})
    endif()
endforeach()

# The library needs no line editor, so only the program links one.
pkg_check_modules(LIBEDIT REQUIRED IMPORTED_TARGET libedit)
add_executable(turbolm ${turbolm_tools})
add_dependencies(turbolm turbolm_archive)
target_link_libraries(turbolm PRIVATE turbolm_static PkgConfig::LIBEDIT)
set_property(TARGET turbolm PROPERTY LINK_DEPENDS ${turbolm_a})
foreach(name ${TURBOLM_PROGRAM_NAMES})
    add_custom_command(TARGET turbolm POST_BUILD
        COMMAND ${CMAKE_COMMAND} -E create_symlink turbolm ${CMAKE_BINARY_DIR}/${name} VERBATIM)
endforeach()
