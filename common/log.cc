// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <iterator>
#include <utility>

#include "common/utf8.h"

namespace ddprun {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

// "\u202e"
std::string escaped(char32_t code) {
  std::string text = "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) text += kDigits[code >> shift & 15];
  return text;
}

// One write(2) per line, so that lines of several processes on one stderr stay whole.
void stderr_sink(LogLevel level, std::string_view message) {
  std::string line = "ddprun: ";
  if (level == LogLevel::kWarning) line += "warning: ";
  if (level == LogLevel::kError) line += "error: ";
  line.append(one_line(message));
  line += '\n';
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

template <typename... Number>
void append_digits(std::string& text, Number... number) {
  char digits[32];
  text.append(digits, std::to_chars(digits, std::end(digits), number...).ptr);
}

std::atomic<LogSink> g_sink{&stderr_sink};
std::atomic<LogLevel> g_level{LogLevel::kInfo};

}  // namespace

void set_log_sink(LogSink sink) { g_sink.store(sink); }
void set_log_level(LogLevel level) { g_level.store(level); }

void append_streamed(std::string& text, long long number) { append_digits(text, number); }
void append_streamed(std::string& text, unsigned long long number) { append_digits(text, number); }
void append_streamed(std::string& text, double number) {
  append_digits(text, number, std::chars_format::general, 6);
}

bool log_enabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

std::string one_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text.front());
    if (byte == '\n') {
      line += "\\n";
    } else if (byte == '\t') {
      line += "\\t";
    } else if (byte < ' ' || byte == 0x7f) {
      line += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else if (length > 1 && is_hidden(utf8_code(text))) {
      line += escaped(utf8_code(text));
    } else {
      line += text.substr(0, std::max<std::size_t>(length, 1));  // also a byte of no character
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return line;
}

void log_message(LogLevel level, std::string_view message) {
  if (log_enabled(level)) g_sink.load()(level, message);
}

}  // namespace ddprun
