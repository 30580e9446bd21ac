// SPDX-License-Identifier: Apache-2.0
// Lines of styled text, and what a terminal is sent for one. Pure.
//
// What a line is given may be anything: what could move a cursor is shown as one_line() has it
// (control characters, marks of direction); of what a terminal may think that it is wider or
// narrower than this program does (combining characters, emoji, bytes that are no UTF-8) there is a
// sign of one column.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::top {

enum class Style { kPlain, kBold, kDim, kGood, kInfo, kWarn, kBad, kChosen, kTitle };

class Line {
 public:
  Line() = default;
  explicit Line(std::string_view text, Style style = Style::kPlain) { add(text, style); }

  Line& add(std::string_view text, Style style = Style::kPlain);
  // Blanks up to this column; nothing where it is there already.
  Line& pad_to(std::size_t column);
  // Both cut what is longer, with "…" at the end, and fill what is shorter.
  Line& add_left(std::string_view text, std::size_t columns, Style style = Style::kPlain);
  Line& add_right(std::string_view text, std::size_t columns, Style style = Style::kPlain);
  Line& add(const Line& other);
  // At most so many columns.
  void cut(std::size_t columns);

  std::size_t columns() const { return columns_; }
  bool empty() const { return columns_ == 0; }
  std::string text() const;  // without styles

  struct Span {
    Style style = Style::kPlain;
    std::string text;  // harmless
  };
  const std::vector<Span>& spans() const { return spans_; }

 private:
  std::vector<Span> spans_;
  std::size_t columns_ = 0;
};

// What a terminal understands.
struct Look {
  bool has_unicode = false;  // else each sign becomes one of ASCII, of the same width
  bool has_color = false;    // else bold, dim and reversed alone
  bool has_styles = false;   // else no escapes at all
};
std::string shown(const Line& line, const Look& look);

// `text`, harmless, and how many columns that has.
std::string harmless(std::string_view text);
std::size_t columns_of(std::string_view harmless_text);
// The begin of it that fits, with "…" where something is missing.
std::string cut_text(std::string_view harmless_text, std::size_t columns);
// In lines of at most `columns`, broken between words where it can be; at most `most` of them.
std::vector<std::string> wrapped(std::string_view text, std::size_t columns, std::size_t most);

}  // namespace ddprun::top
