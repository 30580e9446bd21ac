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

# Further arguments: of each install().
function(ddprun_completions program)
  if(DDPRUN_SANITIZE)
    return()
  endif()
  set(folder ${CMAKE_BINARY_DIR}/share/completions)
  foreach(each bash:${program}:bash-completion/completions zsh:_${program}:zsh/site-functions
               fish:${program}.fish:fish/vendor_completions.d)
    string(REPLACE : ";" each ${each})
    list(GET each 0 shell)
    list(GET each 1 file)
    list(GET each 2 place)
    ddprun_printed(${program} --print-completion=${shell} ${folder}/${file})
    install(FILES ${folder}/${file} DESTINATION ${CMAKE_INSTALL_DATADIR}/${place} ${ARGN})
  endforeach()
endfunction()

# FILE is what `PROGRAM FLAG` prints. DDPRUN_PAGES_BY: the folder of a build's programs that run here, where these don't.
function(ddprun_printed program flag file)
  get_filename_component(folder ${file} DIRECTORY)
  set(printing $<TARGET_FILE:${program}>)
  if(DDPRUN_PAGES_BY)
    set(printing ${DDPRUN_PAGES_BY}/${program})
  endif()
  add_custom_command(OUTPUT ${file}
                     COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
                     COMMAND ${printing} ${flag} > ${file}
                     DEPENDS ${program} VERBATIM)
  string(MAKE_C_IDENTIFIER ${file} target)
  add_custom_target(${target} ALL DEPENDS ${file})
  add_dependencies(pages ${target})
endfunction()
