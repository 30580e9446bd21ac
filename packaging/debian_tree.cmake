# SPDX-License-Identifier: Apache-2.0
# cpack runs this over each package's folders before it packs them. It moves and converts the files that Debian
# has elsewhere, or in another form, than `cmake --install`.
file(GLOB packages LIST_DIRECTORIES ON ${CPACK_TEMPORARY_DIRECTORY}/*)
foreach(root IN LISTS packages)
  if(NOT IS_DIRECTORY ${root}/usr)
    continue()
  endif()
  cmake_path(GET root FILENAME package)
  if(IS_DIRECTORY ${root}/usr/share/zsh/site-functions)  # Debian's zsh reads vendor-completions
    file(RENAME ${root}/usr/share/zsh/site-functions ${root}/usr/share/zsh/vendor-completions)
  endif()
  set(doc ${root}/usr/share/doc/${package})
  file(COPY ${CMAKE_CURRENT_LIST_DIR}/debian/copyright DESTINATION ${doc})
  file(COPY_FILE ${CMAKE_CURRENT_LIST_DIR}/../CHANGELOG.md ${doc}/changelog)
  execute_process(COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/debian_changelog.py
                          ${CPACK_PACKAGE_VERSION} ${CPACK_DEBIAN_PACKAGE_RELEASE}
                          ${CPACK_DEBIAN_CHANGELOG_DISTRIBUTION} ${CPACK_PACKAGE_CONTACT}
                  OUTPUT_FILE ${doc}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
  if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/debian/${package}.lintian-overrides)
    file(COPY ${CMAKE_CURRENT_LIST_DIR}/debian/${package}.lintian-overrides
         DESTINATION ${root}/usr/share/lintian/overrides)
    file(RENAME ${root}/usr/share/lintian/overrides/${package}.lintian-overrides
         ${root}/usr/share/lintian/overrides/${package})
  endif()
  file(GLOB pages ${root}/usr/share/man/man*/*.[0-9])
  execute_process(COMMAND gzip -9nf ${pages} ${doc}/changelog ${doc}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
endforeach()
