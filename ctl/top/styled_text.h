// SPDX-License-Identifier: Apache-2.0
// Styled text for cells of a terminal. Pure.
//
// A line is UTF-8. A style is one byte in it, which holds up to the next one. Each line begins
// plain. harmless() leaves no such byte in what jobs say, nor anything that could move a cursor.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::top {

inline constexpr char kPlain = 1, kBold = 2, kDim = 3, kGood = 4, kInfo = 5, kWarn = 6, kBad = 7,
                      kChosen = 8, kTitle = 9;
using Lines = std::vector<std::string>;
void append(Lines& lines, std::span<const std::string> more);

// Widths are the C library's, which knows those of all characters in a UTF-8 locale only. Makes
// LC_CTYPE such a one, for all threads; call before all else here.
void use_wide_characters();

// Control characters and marks of direction are written out, as one_line() does. A character whose
// width terminals disagree about (combining, beyond U+FFFF), or a byte that is no UTF-8, is "?".
// At most 16 KiB of it.
std::string harmless(std::string_view text);

// The rest takes harmless text, with or without styles.
std::size_t columns_of(std::string_view line);
// The part of it that fits; "…" at the end where something is missing.
std::string cut(std::string_view line, std::size_t columns);
// Exactly so wide: cut, or filled with blanks behind or before it.
std::string left(std::string_view text, std::size_t columns);
std::string right(std::string_view text, std::size_t columns);
// Adds it in lines of at most `columns`, broken between words where possible; at most `most` of
// them. Adds none for an empty text.
void add_wrapped(Lines& lines, std::string_view text, std::size_t columns, char style,
                 std::size_t most);
// Each character of more than ASCII becomes one of ASCII, or as many "?" as it is wide.
std::string in_ascii(std::string_view line);
// Without styles, and without blanks at the end.
std::string without_styles(std::string line);

}  // namespace ddprun::top
