// SPDX-License-Identifier: Apache-2.0
// How ddprun's own lines look, and how they are written to stderr without iostreams.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "common/environment.h"
#include "common/log_level.h"

namespace ddprun::launcher {

// Returns the lowest level of ddprun's own lines that are printed, by torchrun's $LOGLEVEL. DEBUG
// and INFO: all. ERROR, CRITICAL: errors only. Else kInfo, also for WARNING, torchrun's default.
LogLevel log_level(const Environment& environment);

// "[ddprun] warning: <text>\n".
std::string own_line(LogLevel level, std::string_view text);

// How long the end of a program waits for a reader that doesn't take the last output, such as "|
// less".
inline constexpr std::chrono::milliseconds kReaderPatience{3'600'000};
inline constexpr std::chrono::milliseconds kSignalledReaderPatience{2'000};  // after a signal

// Writes until all is written, or nothing is taken for `patience`. Returns the number of bytes. If
// it is less than all, errno says why (0: the patience).
std::size_t write_what_fits(int fd, std::string_view text, std::chrono::milliseconds patience);
// Writes all of it. Returns false if it can't, or the reader takes nothing for `patience`: then
// errno says why (0: the patience).
bool write_within(int fd, std::string_view text, std::chrono::milliseconds patience);
// The patience for a program's last lines.
inline constexpr std::chrono::milliseconds kLastLinesPatience{10'000};
// write_within() with kLastLinesPatience.
bool write_to_stderr(std::string_view text);
bool write_to_stdout(std::string_view text);

// A LogSink (common/log.h): writes each message to stderr, as an entry of the journal or an
// own_line(). Drops it after 0.1 s without room.
void log_to_stderr(LogLevel level, std::string_view message);

}  // namespace ddprun::launcher
