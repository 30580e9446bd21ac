# SPDX-License-Identifier: Apache-2.0
# Makes and installs manual pages and the shells' completions. The programs themselves print them, from the
# options that they read.

# Builds all pages, which `cmake --install` needs.
add_custom_target(pages)

# Makes NAME.SECTION, which the program NAME prints with FLAG.
function(ddprun_man_page name section flag)
  if(DDPRUN_SANITIZE)
    return()  # a program with a sanitizer may not run in every shell, and nobody installs it
  endif()
  string(REGEX REPLACE "[.].*" "" program ${name})
  set(page ${CMAKE_BINARY_DIR}/share/man/man${section}/${name}.${section})
  ddprun_printed(${program} "${flag}" ${page})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endfunction()

# Makes the program's completions. Further arguments are passed to each install().
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

# Makes FILE of the output of `PROGRAM FLAG`. DDPRUN_PAGES_BY: a folder with programs that run here, for a cross-build.
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
