# SPDX-License-Identifier: Apache-2.0
# ${report_style}: a source file with the report's style, whose colours and symbol are the status page's.
include(PageHash)
set(report_page_folder ${CMAKE_CURRENT_LIST_DIR})
set(status_page_folder ${CMAKE_SOURCE_DIR}/rendezvous/daemon/page)
set(report_style ${CMAKE_CURRENT_BINARY_DIR}/report_style.cc)

file(READ ${status_page_folder}/palette.css report_style_text)
file(READ ${report_page_folder}/report.css text)
string(APPEND report_style_text "${text}")
file(STRINGS ${status_page_folder}/status.html report_icon REGEX "rel=\"icon\"" LIMIT_COUNT 1)
page_hash("${report_style_text}" report_style_hash)
configure_file(${report_page_folder}/report_style.cc.in ${report_style} @ONLY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${status_page_folder}/palette.css ${status_page_folder}/status.html
             ${report_page_folder}/report.css ${report_page_folder}/report_style.cc.in)
