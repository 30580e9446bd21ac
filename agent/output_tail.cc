// SPDX-License-Identifier: Apache-2.0
#include "agent/output_tail.h"

#include <algorithm>

#include "common/utf8.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kCutMark = " …";

// Length of the terminal escape sequence that `text` begins with (ESC [ … letter), 0: none.
std::size_t escape_length(std::string_view text) {
  if (text.size() < 2 || text[0] != '\x1b' || text[1] != '[') return 0;
  for (std::size_t i = 2; i < text.size(); ++i) {
    if (text[i] >= 0x40 && text[i] <= 0x7E) return i + 1;
  }
  return text.size();
}

}  // namespace

std::string printable_line(std::string_view line) {
  const bool is_cut = line.size() > OutputTail::kMaxLineBytes;
  if (is_cut) line = line.substr(0, OutputTail::kMaxLineBytes);
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  const auto carriage_return = line.rfind('\r');
  if (carriage_return != std::string_view::npos) line.remove_prefix(carriage_return + 1);
  std::string out;
  while (!line.empty()) {
    std::size_t used = escape_length(line);
    if (used == 0) {
      used = utf8_length(line);
      const unsigned char first = static_cast<unsigned char>(line[0]);
      const bool is_control = (first < 0x20 && first != '\t') || first == 0x7F ||
                              (used > 1 && is_hidden(utf8_code(line)));
      if (used == 0 && is_cut && line.size() < 4) break;  // the character that the cut went through
      out.append(used == 0 || is_control ? kReplacementCharacter : line.substr(0, used));
      used = std::max<std::size_t>(used, 1);
    }
    line.remove_prefix(used);
  }
  if (is_cut) out.append(kCutMark);
  return out;
}

// One byte more than is shown, so that a cut line is known as such.
void OutputTail::append_bounded(std::string& to, std::string_view bytes) {
  const std::size_t room = kMaxLineBytes + 1 - std::min(to.size(), kMaxLineBytes + 1);
  to.append(bytes.substr(0, room));
}

void OutputTail::add_line(std::string_view first, std::string_view rest) {
  std::string& slot = ring_[num_added_++ % kNumLines];
  slot.clear();
  append_bounded(slot, first);
  append_bounded(slot, rest);
}

void OutputTail::feed(std::size_t stream, std::string_view bytes) {
  std::string& partial = partial_[stream];
  // Of a large batch only the last lines matter: find where they begin.
  std::size_t begin = bytes.size();
  std::size_t newlines = 0;
  while (begin > 0) {
    const auto newline = bytes.rfind('\n', begin - 1);
    if (newline == std::string_view::npos) {
      begin = 0;
      break;
    }
    begin = newline;
    if (++newlines > kNumLines) {
      partial.clear();
      bytes.remove_prefix(newline + 1);
      break;
    }
  }
  while (!bytes.empty()) {
    const auto newline = bytes.find('\n');
    if (newline == std::string_view::npos) break;
    add_line(partial, bytes.substr(0, newline));
    partial.clear();
    bytes.remove_prefix(newline + 1);
  }
  // A progress bar's old texts would fill the bound.
  const auto carriage_return = bytes.rfind('\r');
  if (carriage_return != std::string_view::npos && carriage_return + 1 < bytes.size()) {
    partial.clear();
    bytes.remove_prefix(carriage_return + 1);
  }
  append_bounded(partial, bytes);
}

std::vector<std::string> OutputTail::lines(std::size_t most) const {
  std::vector<std::string> result;
  const std::size_t kept = std::min({num_added_, kNumLines, most});
  for (std::size_t i = num_added_ - kept; i < num_added_; ++i) {
    result.push_back(printable_line(ring_[i % kNumLines]));
  }
  for (const std::string& partial : partial_) {
    if (!partial.empty()) result.push_back(printable_line(partial));
  }
  if (result.size() > most) {
    result.erase(result.begin(),
                 result.begin() + static_cast<std::ptrdiff_t>(result.size() - most));
  }
  return result;
}

}  // namespace ddprun::agent
