# SPDX-License-Identifier: Apache-2.0
# Makes the parts of a web page: one text of its styles, one of its scripts, and their hashes for its
# Content-Security-Policy.

# Sets `out` to the SHA-256 of `text` in the policy's form: base64 of 32 bytes.
function(page_hash text out)
  set(letters ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  string(SHA256 hex "${text}")
  set(hash "")
  foreach(begin RANGE 0 63 3)  # three hexadecimal digits are two base64 letters
    string(SUBSTRING "${hex}00" ${begin} 3 digits)
    math(EXPR first "0x${digits} >> 6")
    math(EXPR second "0x${digits} & 63")
    foreach(index ${first} ${second})
      string(SUBSTRING ${letters} ${index} 1 letter)
      string(APPEND hash ${letter})
    endforeach()
  endforeach()
  string(REGEX REPLACE "A$" "=" hash ${hash})  # replaces the letter of the zero byte that was added
  set(${out} ${hash} PARENT_SCOPE)
endfunction()

# page_text(FILE OUT): sets OUT to the file's text. CMake runs again when the file changes.
function(page_text file out)
  file(READ ${file} text)
  set(${out} "${text}" PARENT_SCOPE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
endfunction()

function(page_asks_for_nothing text)
  foreach(outside " src=" "stylesheet" "http://" "https://")
    string(FIND "${text}" "${outside}" found)
    if(NOT found EQUAL -1)
      message(FATAL_ERROR "a page asks for more than itself: '${outside}'")
    endif()
  endforeach()
endfunction()

# web_page(STYLES … SCRIPTS …): sets page_style, page_script, their hashes page_style_hash and
# page_script_hash, and page_icon, a <link> with its picture inside.
function(web_page)
  cmake_parse_arguments(page "" "" "STYLES;SCRIPTS" ${ARGN})
  set(page_style "")
  set(page_script "\"use strict\";\n")
  foreach(file ${page_STYLES})
    page_text(${file} text)
    string(APPEND page_style "${text}")
  endforeach()
  foreach(file ${page_SCRIPTS})
    page_text(${file} text)
    string(APPEND page_script "${text}")
  endforeach()
  page_text(${CMAKE_SOURCE_DIR}/common/web/icon.html page_icon)
  page_asks_for_nothing("${page_style}${page_script}${page_icon}")
  page_hash("${page_style}" page_style_hash)
  page_hash("${page_script}" page_script_hash)
  foreach(name page_style page_style_hash page_script page_script_hash page_icon)
    set(${name} "${${name}}" PARENT_SCOPE)
  endforeach()
endfunction()
