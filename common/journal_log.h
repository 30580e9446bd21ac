// SPDX-License-Identifier: Apache-2.0
// systemd's journal by its native protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL), without
// libsystemd: a line of the log as an entry with fields, so that `journalctl -p warning` or
// `journalctl DDPRUN_JOB_ID=…` finds it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/unique_fd.h"

namespace ddprun {

class JournalLog {
 public:
  // Names of upper-case letters, digits and '_'; values are any bytes.
  using Fields = std::vector<std::pair<std::string_view, std::string_view>>;

  // nullopt: this process' stderr is not the stream of the journal that JOURNAL_STREAM names (it
  // was redirected since, or never was one).
  static std::optional<JournalLog> behind_stderr();

  // To journald's datagram socket at `path`. Throws Error: out of descriptors.
  explicit JournalLog(std::string path = "/run/systemd/journal/socket");

  // One entry. Never waits; false: journald did not take it (it is gone, or has no room).
  bool write(const Fields& fields) const;
  // Likewise a line of `program`'s log: MESSAGE, PRIORITY, SYSLOG_IDENTIFIER, and DDPRUN_JOB_ID
  // where it is about a job (LogJob).
  bool write_line(LogLevel level, std::string_view program, std::string_view message) const;

 private:
  std::string path_;
  UniqueFd socket_;
};

}  // namespace ddprun
