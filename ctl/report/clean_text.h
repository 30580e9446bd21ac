// SPDX-License-Identifier: Apache-2.0
// Words of others, as a part of a document of ours. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun::report {

// Valid UTF-8 on one line: bytes that are none become U+FFFD, controls and what would turn or hide
// the text around it are as one_line() has them. Cut behind `most_bytes`, with "…".
std::string clean_text(std::string_view text, std::size_t most_bytes = 1024);

// As the text of an element or the value of an attribute.
std::string html_text(std::string_view text);

}  // namespace ddprun::report
