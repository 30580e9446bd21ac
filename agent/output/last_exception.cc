// SPDX-License-Identifier: Apache-2.0
#include "agent/output/last_exception.h"

#include <algorithm>
#include <iterator>

#include "common/text.h"

namespace ddprun::agent {
namespace {

// Returns the line without blanks and without the "[rank3]: " that torch.distributed puts before
// the lines of a traceback.
std::string_view bare(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  if (line.starts_with("[rank")) {
    const std::size_t end = line.find("]: ");
    if (end != std::string_view::npos) line.remove_prefix(end + 3);
  }
  return line;
}

bool names_exception(std::string_view line) {
  const std::size_t end =
      line.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.");
  const std::string_view name = line.substr(0, end);
  const bool stands_alone = end == std::string_view::npos || line[end] == ':';
  return stands_alone &&
         ends_with_any(name, {"Error", "Exception", "Interrupt", "Exit", "BdbQuit"});
}

// Whether std::terminate wrote the line: "what():  TEXT", or before it "… an instance of 'NAME'".
bool is_of_terminate(std::string_view line) {
  return line.starts_with("what():") || line.starts_with("terminate called after throwing");
}

}  // namespace

std::string_view last_exception(const std::vector<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const std::string_view text = bare(*line);
    if (names_exception(text) || is_of_terminate(text)) return text;
  }
  return {};
}

std::vector<std::string> last_traceback(const std::vector<std::string>& lines) {
  const auto end = std::find_if(lines.rbegin(), lines.rend(), [](const std::string& line) {
                     return names_exception(bare(line));
                   }).base();
  if (end == lines.begin()) return {};
  auto begin = end - 1;
  const auto head = std::find_if(std::reverse_iterator(end), lines.rend(), [](const auto& line) {
    return bare(line) == "Traceback (most recent call last):";
  });
  if (head != lines.rend()) begin = head.base() - 1;
  return shortened_traceback({begin, end});
}

std::vector<std::string> shortened_traceback(std::vector<std::string> lines) {
  if (lines.size() > kMaxTracebackLines) {
    const auto surplus = static_cast<std::ptrdiff_t>(lines.size() - kMaxTracebackLines);
    lines.erase(lines.begin() + 1, lines.begin() + 1 + surplus);
  }
  return lines;
}

bool is_of_empty_stdin(std::string_view exception) {
  return exception == "bdb.BdbQuit" || exception == "EOFError: EOF when reading a line";
}

}  // namespace ddprun::agent
