// SPDX-License-Identifier: Apache-2.0
// Styled text for cells of a terminal. Pure.
//
// A line is UTF-8. One byte in it sets a style, which lasts until the next such byte. Each line
// begins plain. harmless() removes these bytes, and all that could move a cursor, from what jobs
// say.
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

// Sets LC_CTYPE, for all threads, to a UTF-8 locale, since only there the C library knows the width
// of all characters. Must be called before the functions below.
void use_wide_characters();

// Makes a text safe to show. Control characters and marks of direction are written as one_line()
// writes them. Invalid bytes, and characters whose width differs between terminals (combining,
// beyond U+FFFF), become "?". Cuts it to 16 KiB.
std::string harmless(std::string_view text);

// The functions below take harmless text, with or without styles.
std::size_t columns_of(std::string_view line);
// Returns the part that fits, with "…" at the end if something is missing.
std::string cut(std::string_view line, std::size_t columns);
// Returns text of exactly this width: cut, or filled with blanks behind or before it.
std::string left(std::string_view text, std::size_t columns);
std::string right(std::string_view text, std::size_t columns);
// Adds the text in at most `most` lines of at most `columns`, broken between words where possible.
// Adds none for an empty text.
void add_wrapped(Lines& lines, std::string_view text, std::size_t columns, char style,
                 std::size_t most);
// Replaces each character that isn't ASCII by an ASCII one, or by as many "?" as it has columns.
std::string in_ascii(std::string_view line);
// Removes styles, and blanks at the end.
std::string without_styles(std::string line);

}  // namespace ddprun::top
