// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/job_end.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "common/clock.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/json_text.h"
#include "common/log.h"
#include "common/socket.h"
#include "common/unique_fd.h"

namespace ddprun::doctor {
namespace {

constexpr std::chrono::seconds kEndPatience{10};
constexpr std::size_t kMaxReasonBytes = 1024;

}  // namespace

void end_job(const Environment& environment, const Place& place, const std::string& reason,
             int exit_code) {
  const auto path = find_variable(environment, env::kAgentSocket);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!path || path->size() >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path->data(), path->size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto* target = reinterpret_cast<const sockaddr*>(&address);
  if (!fd || ::connect(fd.get(), target, sizeof address) != 0) return;
  const std::string lines =
      concat(R"({"type":"hello","version":1,"round":)", place.round, R"(,"local_rank":)",
             place.local_rank, "}\n", R"({"type":"stop_job","reason":")",
             json_text(reason, kMaxReasonBytes), R"(","exit_code":)", exit_code, "}\n");
  const Deadline deadline = Deadline::after(kEndPatience);
  try {
    send_all(fd.get(), lines.data(), lines.size(), deadline);
    char answer[4096];
    while (wait_ready(fd.get(), POLLIN, deadline)) {
      if (!receive_step(fd.get(), answer, sizeof answer).ended.empty()) return;
    }
  } catch (const Error&) {  // the exit status says it, too
  }
}

}  // namespace ddprun::doctor
