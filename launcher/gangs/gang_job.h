// SPDX-License-Identifier: Apache-2.0
// A job that standing agents run, from the shell in which it was typed: submits it, shows what its
// nodes print, and ends as it does (docs/nodes.md). ddprun's root object then. Blocking, one
// thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "common/service_manager.h"
#include "launcher/gangs/gang_request.h"
#include "launcher/gangs/gang_service.h"
#include "launcher/hosts/own_lines.h"
#include "rendezvous/pages/gang_client.h"
#include "rendezvous/pages/gang_reader.h"

namespace ddprun::launcher {

class GangJob {
 public:
  // Precondition: the request has no problems. `lost_timeout`: so long without a ddprund is waited
  // for one.
  GangJob(GangRequest request, pages::GangClientOptions client,
          std::chrono::milliseconds lost_timeout, ServiceManager manager);

  // Returns ddprun's exit status. Throws Error: it is refused.
  int run();

 private:
  enum class Next { kGoOn, kLeave };

  Next submit();
  Next look_at_signals();
  void say_what_was_outlived();
  Next follow();
  Next forgotten();
  bool call(const std::function<void()>& request);
  void take(const gangs::GangNews& news);
  Next show_taken();
  Next show(const std::vector<pages::GangReader::Piece>& pieces);
  Next write(int fd, std::string_view text);
  void say_phase();
  int finish();

  const GangRequest request_;
  GangService service_;
  const std::chrono::milliseconds page_wait_;
  const pages::GangClient client_;
  const std::chrono::milliseconds lost_timeout_;
  pages::GangReader reader_;
  std::optional<OwnLines> own_lines_;  // once the nodes are known
  std::optional<gangs::GangPhase> said_phase_;
  std::vector<pages::GangReader::Piece> taken_;  // not shown yet
  std::string waits_for_;
  std::size_t before_ = 0;
  std::optional<Clock::time_point> lost_since_;
  std::string lost_why_;
  bool has_cancelled_ = false;
  int num_signals_said_ = 0;    // before it was said that it is cancelled
  bool has_no_reader_[3] = {};  // by descriptor: nothing more is written there
  int exit_status_ = 0;         // where it leaves the gang to itself
};

}  // namespace ddprun::launcher
