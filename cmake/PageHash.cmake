# SPDX-License-Identifier: Apache-2.0
# What a page's policy has of its own style and scripts.

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
