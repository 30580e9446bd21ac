// SPDX-License-Identifier: Apache-2.0
// Log facade. Libraries write through it; a program decides where lines go (ddprun and ddprund set
// sinks of their own, workers keep the default: stderr). Any thread.
#pragma once

#include <sstream>
#include <string>
#include <string_view>

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

// "a" + 1 + "b" → "a1b", for messages; nothing to compare with a format library in speed.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// The parts with `separator` between them.
template <typename Parts>
std::string listed(const Parts& parts, std::string_view separator = ", ") {
  std::ostringstream out;
  std::string_view before;
  for (const auto& part : parts) {
    out << before << part;
    before = separator;
  }
  return out.str();
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
