// SPDX-License-Identifier: Apache-2.0
// Finds valid UTF-8 in bytes from outside: a worker's output, a peer's text. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun {

// U+FFFD, which stands for a byte that is no text.
constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Returns the number of bytes of the valid UTF-8 character at the beginning of `text`, which is not
// empty; 0: there is none. Overlong forms, surrogates, code points beyond U+10FFFF and a cut-off
// character are not valid.
std::size_t utf8_length(std::string_view text);

// Returns the code point of the valid character at the beginning of `text`.
char32_t utf8_code(std::string_view text);

// Whether the character is invisible and hides or turns the text around it. Such are C1, marks of
// direction, characters of no width, ends of lines and paragraphs, and U+FFFE and U+FFFF, which are
// no characters.
bool is_hidden(char32_t code);

// Returns "\u202e" for a code point up to U+FFFF.
std::string escaped_code(char32_t code);

// Returns a text as the inside of a JSON string, for the worker SDK, which needs no Boost (else:
// json.h). It is valid UTF-8 of one line, with quotes and backslashes escaped, cut at about
// `max_bytes`.
std::string json_text(std::string_view text, std::size_t max_bytes);

}  // namespace ddprun
