# SPDX-License-Identifier: Apache-2.0
# ${status_page}: a source file with the status page, one document made of status.html, its style and
# its scripts; and with the policy that lets a browser run these and nothing else.
set(page_folder ${CMAKE_CURRENT_LIST_DIR})
set(status_page ${CMAKE_CURRENT_BINARY_DIR}/status_page.cc)
set(page_scripts text.js model.js happenings.js charts.js ranks.js machines.js job.js view.js link.js)

# SHA-256 as a policy has it: base64 of 32 bytes.
function(page_hash text out)
  set(letters ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  string(SHA256 hex "${text}")
  set(hash "")
  foreach(begin RANGE 0 63 3)  # three digits are two letters
    string(SUBSTRING "${hex}00" ${begin} 3 digits)
    math(EXPR first "0x${digits} >> 6")
    math(EXPR second "0x${digits} & 63")
    foreach(index ${first} ${second})
      string(SUBSTRING ${letters} ${index} 1 letter)
      string(APPEND hash ${letter})
    endforeach()
  endforeach()
  string(REGEX REPLACE "A$" "=" hash ${hash})  # the byte that was added
  set(${out} ${hash} PARENT_SCOPE)
endfunction()

file(READ ${page_folder}/status.html page_document)
file(READ ${page_folder}/status.css page_style)
set(page_script "\"use strict\";\n")
foreach(name ${page_scripts})
  file(READ ${page_folder}/${name} text)
  string(APPEND page_script "${text}")
  string(REPLACE "<script src=\"${name}\"></script>\n" "" page_document "${page_document}")
endforeach()
string(REPLACE "<link rel=\"stylesheet\" href=\"status.css\">" "<style>${page_style}</style>"
       page_document "${page_document}")
string(REPLACE "</body>" "<script>${page_script}</script>\n</body>" page_document "${page_document}")
foreach(outside " src=" "stylesheet" "http://" "https://")
  string(FIND "${page_document}" "${outside}" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "the status page asks for more than itself: '${outside}'")
  endif()
endforeach()
page_hash("${page_style}" page_style_hash)
page_hash("${page_script}" page_script_hash)
configure_file(${page_folder}/status_page.cc.in ${status_page} @ONLY)
foreach(name status.html status.css status_page.cc.in ${page_scripts})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_folder}/${name})
endforeach()
