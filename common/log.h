// SPDX-License-Identifier: Apache-2.0
// Log facade. Libraries write through it; a program decides where lines go (ddprun and ddprund set
// sinks of their own, workers keep the default: stderr). Any thread.
#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

namespace ddprun {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

using LogSink = void (*)(LogLevel level, std::string_view message);

// Replaces the sink; call before threads start. The default prints "ddprun: <message>" to stderr.
void set_log_sink(LogSink sink);

// Messages below this level are dropped before they are formatted. Default: kInfo.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

// `text` as one line: line breaks, other controls, and what hides or turns the text around it, as
// \n, \x1b, \u202e, … What a peer sent must not forge lines of a log.
std::string one_line(std::string_view text);

void log_message(LogLevel level, std::string_view message);

// As a std::ostream writes them.
void append_streamed(std::string& text, long long number);
void append_streamed(std::string& text, unsigned long long number);
void append_streamed(std::string& text, double number);

// Most texts are made of texts and numbers, and a stream needs a microsecond to be made. A stream's
// manipulators have no effect.
template <typename Part>
void append_text(std::string& text, const Part& part) {
  static_assert(!std::is_function_v<Part>, "no std::hex, std::left, …");
  if constexpr (std::is_pointer_v<Part> && std::is_convertible_v<const Part&, std::string_view>) {
    if (part != nullptr) text += part;
  } else if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    text += std::string_view(part);
  } else if constexpr (std::is_same_v<Part, bool>) {
    text += part ? '1' : '0';
  } else if constexpr (std::is_integral_v<Part> && sizeof(Part) == 1) {
    text += static_cast<char>(part);
  } else if constexpr (std::is_integral_v<Part> && std::is_signed_v<Part>) {
    append_streamed(text, static_cast<long long>(part));
  } else if constexpr (std::is_integral_v<Part>) {
    append_streamed(text, static_cast<unsigned long long>(part));
  } else if constexpr (std::is_same_v<Part, double> || std::is_same_v<Part, float>) {
    append_streamed(text, static_cast<double>(part));
  } else {
    std::ostringstream out;
    out << part;
    text += out.str();
  }
}

// "a" + 1 + "b" → "a1b", for messages.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  (append_text(text, parts), ...);
  return text;
}

// The parts with `separator` between them.
template <typename Parts>
std::string listed(const Parts& parts, std::string_view separator = ", ") {
  std::string text;
  std::string_view before;
  for (const auto& part : parts) {
    text += before;
    append_text(text, part);
    before = separator;
  }
  return text;
}

template <typename... Parts>
void log_debug(const Parts&... parts) {
  if (log_enabled(LogLevel::kDebug)) log_message(LogLevel::kDebug, concat(parts...));
}
template <typename... Parts>
void log_info(const Parts&... parts) {
  if (log_enabled(LogLevel::kInfo)) log_message(LogLevel::kInfo, concat(parts...));
}
template <typename... Parts>
void log_warning(const Parts&... parts) {
  if (log_enabled(LogLevel::kWarning)) log_message(LogLevel::kWarning, concat(parts...));
}
template <typename... Parts>
void log_error(const Parts&... parts) {
  if (log_enabled(LogLevel::kError)) log_message(LogLevel::kError, concat(parts...));
}

}  // namespace ddprun
