# SPDX-License-Identifier: Apache-2.0
# ${status_page}: a source file with the status page, one document made of status.html, its style and its scripts. It
# also has the policy that lets a browser run these and nothing else.
include(WebPage)
set(page_folder ${CMAKE_CURRENT_LIST_DIR})
set(web_folder ${CMAKE_SOURCE_DIR}/common/web)
set(status_page ${CMAKE_CURRENT_BINARY_DIR}/status_page.cc)
set(page_scripts model.js happenings.js charts.js ranks.js output.js machines.js job.js view.js link.js)
list(TRANSFORM page_scripts PREPEND ${page_folder}/)

web_page(STYLES ${web_folder}/palette.css ${web_folder}/plot.css ${page_folder}/status.css
         SCRIPTS ${web_folder}/text.js ${web_folder}/plot.js ${page_scripts})
page_text(${page_folder}/status.html page_document)
string(REPLACE "</head>" "${page_icon}<style>${page_style}</style>\n</head>" page_document "${page_document}")
string(REPLACE "</body>" "<script>${page_script}</script>\n</body>" page_document "${page_document}")
page_asks_for_nothing("${page_document}")
configure_file(${page_folder}/status_page.cc.in ${status_page} @ONLY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page_folder}/status_page.cc.in)
