// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/out_of_memory.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <string_view>

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMostBytes = 300;

bool ends_with_any(std::string_view text, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](auto end) { return text.ends_with(end); });
}

// Without blanks and the "[rank3]: " that torch.distributed puts before a traceback's lines.
std::string_view bare(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  if (line.starts_with("[rank")) {
    const std::size_t end = line.find("]: ");
    if (end != std::string_view::npos) line.remove_prefix(end + 3);
  }
  return line;
}

// "torch.OutOfMemoryError" of "torch.OutOfMemoryError: CUDA out of memory. …"; empty: the line
// isn't of an exception's name, and its text.
std::string_view exception_name(std::string_view line) {
  const std::size_t end =
      line.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.");
  const std::string_view name = line.substr(0, end);
  const bool stands_alone = end == std::string_view::npos || line[end] == ':';
  const bool is_one = ends_with_any(name, {"Error", "Exception", "Interrupt", "Exit"});
  return stands_alone && is_one ? name : "";
}

// How C++ tells it: "what():  TEXT", before it "… an instance of 'NAME'".
bool is_of_terminate(std::string_view line) {
  return line.starts_with("what():") || line.starts_with("terminate called after throwing");
}

bool names_memory(std::string_view line, std::string_view name) {
  if (ends_with_any(name, {"OutOfMemoryError", "MemoryError"})) return true;
  constexpr std::array<std::string_view, 9> kTexts = {"CUDA out of memory",
                                                      "HIP out of memory",
                                                      "CUDA error: out of memory",
                                                      "HIP error: out of memory",
                                                      "std::bad_alloc",
                                                      "c10::OutOfMemoryError",
                                                      "can't allocate memory",
                                                      "[Errno 12] Cannot allocate memory",
                                                      "RESOURCE_EXHAUSTED: Out of memory"};
  return std::any_of(kTexts.begin(), kTexts.end(), [&](std::string_view text) {
    return line.find(text) != std::string_view::npos;
  });
}

// The last exception counts: an earlier one may have been caught.
std::string memory_line(const std::vector<std::string>& lines) {
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    const std::string_view text = bare(*line);
    const std::string_view name = exception_name(text);
    if (name.empty() && !is_of_terminate(text)) continue;
    return names_memory(text, name) ? std::string(text.substr(0, kMostBytes)) : "";
  }
  return {};
}

}  // namespace

std::string out_of_memory(const membership::WorkerFailure& failure) {
  if (!failure.out_of_memory.empty()) return failure.out_of_memory;
  const bool by_itself = failure.signal_number == 0 || failure.signal_number == SIGABRT;
  if (!by_itself || failure.hung) return {};
  const std::string line =
      failure.note.empty() ? memory_line(failure.last_lines) : memory_line({failure.note});
  return line.empty() ? "" : "ran out: " + line;
}

}  // namespace ddprun::launcher
