// SPDX-License-Identifier: Apache-2.0
// Log facade. Libraries write through it, and a program decides where lines go. ddprun and ddprund
// set their own sinks; workers keep the default, stderr. Any thread.
#pragma once

#include <string_view>

#include "common/log_level.h"
#include "common/text.h"

namespace ddprun {

using LogSink = void (*)(LogLevel level, std::string_view message);

// Replaces the sink; call before threads start. The default prints "ddprun: <message>" to stderr.
void set_log_sink(LogSink sink);

// Messages below this level are dropped before they are formatted. Default: kInfo.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);

void log_message(LogLevel level, std::string_view message);

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

inline constexpr int kPeerLines = 300, kPeerLinesPerSecond = 5;  // at once, and then per second
bool may_log_about_peer();

// Logs about a connection of a peer who may be a stranger, within a limit: he could fill the disk
// with such lines.
template <typename... Parts>
void log_about_peer(LogLevel level, const Parts&... parts) {
  if (log_enabled(level) && may_log_about_peer()) log_message(level, concat(parts...));
}

}  // namespace ddprun
