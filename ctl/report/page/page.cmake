# SPDX-License-Identifier: Apache-2.0
# ${report_parts}: a source file with the report's style and script, whose charts, colours and icon are the status
# page's. Its policy lets a browser use these and ask for nothing.
include(WebPage)
set(report_page_folder ${CMAKE_CURRENT_LIST_DIR})
set(web_folder ${CMAKE_SOURCE_DIR}/common/web)
set(report_parts ${CMAKE_CURRENT_BINARY_DIR}/report_parts.cc)

web_page(STYLES ${web_folder}/palette.css ${web_folder}/plot.css ${report_page_folder}/report.css
         SCRIPTS ${web_folder}/text.js ${web_folder}/plot.js ${report_page_folder}/report.js)
page_asks_for_nothing("${page_style}${page_script}${page_icon}")
configure_file(${report_page_folder}/report_parts.cc.in ${report_parts} @ONLY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${report_page_folder}/report_parts.cc.in)
