# SPDX-License-Identifier: Apache-2.0
# Manual pages and the shells' completions: printed by the programs themselves, from the options that
# they read, and installed where man(1) and the shells look.

# All of them: `cmake --install` wants them.
add_custom_target(pages)

# NAME.SECTION, printed by the program that was added last, with FLAG.
function(ddprun_man_page name section flag)
  if(DDPRUN_SANITIZE)
    return()  # a program that is built so may not run in every shell, and nobody installs it
  endif()
  string(REGEX REPLACE "[.].*" "" program ${name})
  set(page ${CMAKE_BINARY_DIR}/share/man/man${section}/${name}.${section})
  ddprun_printed(${program} "${flag}" ${page})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endfunction()

function(ddprun_completions)
  if(DDPRUN_SANITIZE)
    return()
  endif()
  set(folder ${CMAKE_BINARY_DIR}/share/completions)
  ddprun_printed(ddprun --print-completion=bash ${folder}/ddprun)
  ddprun_printed(ddprun --print-completion=zsh ${folder}/_ddprun)
  ddprun_printed(ddprun --print-completion=fish ${folder}/ddprun.fish)
  install(FILES ${folder}/ddprun DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${folder}/_ddprun DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${folder}/ddprun.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endfunction()

# FILE is what `PROGRAM FLAG` prints.
function(ddprun_printed program flag file)
  get_filename_component(folder ${file} DIRECTORY)
  add_custom_command(OUTPUT ${file}
                     COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
                     COMMAND $<TARGET_FILE:${program}> ${flag} > ${file}
                     DEPENDS ${program} VERBATIM)
  string(MAKE_C_IDENTIFIER ${file} target)
  add_custom_target(${target} ALL DEPENDS ${file})
  add_dependencies(pages ${target})
endfunction()
