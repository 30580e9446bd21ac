// SPDX-License-Identifier: Apache-2.0
// The queue's pages under /v1/gangs. It asks nodes for jobs' output. I/O thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/daemon/gang_hub.h"
#include "rendezvous/daemon/http_session.h"
#include "rendezvous/daemon/shared_page.h"
#include "rendezvous/gangs/gang_json.h"

namespace ddprun::rendezvous {

class GangPages : public std::enable_shared_from_this<GangPages> {
 public:
  // Makes the pages, which are the hub's listener until stop().
  static std::shared_ptr<GangPages> make(boost::asio::io_context& io, std::shared_ptr<GangHub> hub);

  // Calls `answer` once, at once or later, unless stop() comes first.
  void ask(const HttpSession::Request& request, HttpSession::Answer answer);

  void stop();

  static constexpr std::size_t kMaxWaiting = 2048;
  static constexpr std::size_t kMaxWaitingOfUser = kMaxWaiting / 2;  // of a user over loopback

 private:
  // A request that waits for a job's output.
  struct Waiting {
    std::string gang;
    std::optional<uid_t> user;  // over loopback, as the kernel says
    HttpSession::Answer answer;
    std::vector<gangs::NodeOutput> output;       // by node, in the request's order
    std::map<std::uint64_t, std::size_t> asked;  // unanswered: request → index of output
    std::uint64_t seen = 0;                      // the gang's changes at the request
    bool is_patient = false;                     // ends at the first news; else at the last answer
    std::unique_ptr<boost::asio::steady_timer> timer;
  };

  GangPages(boost::asio::io_context& io, std::shared_ptr<GangHub> hub);

  void submit(const HttpSession::Request& request, HttpSession::Answer answer);
  void cancel(const gangs::GangQueue::Gang& gang, const HttpSession::Request& request,
              HttpSession::Answer answer);
  void logs(const gangs::GangTarget& target, const gangs::GangQueue::Gang& gang,
            std::optional<uid_t> user, HttpSession::Answer answer);
  void ask_node(Waiting& waiting, std::uint64_t number, const gangs::OutputPlace& place,
                const gangs::GangQueue::Gang& gang, std::int64_t wait_ms);
  void answered(gangs::ConnectionId connection, const gangs::OutputAnswer& answer);
  void changed(const std::string& gang);
  void finish(std::uint64_t number);
  HttpSession::Page told(const std::string& id, unsigned status) const;

  boost::asio::io_context& io_;
  const std::shared_ptr<GangHub> hub_;  // shared with its waits
  SharedPage all_;
  std::map<std::uint64_t, Waiting> waiting_;
  struct Asked {
    std::uint64_t number = 0;  // key in waiting_
    gangs::ConnectionId asked_of = 0;
  };
  std::map<std::uint64_t, Asked> waits_for_;  // by request number
  std::uint64_t next_number_ = 1, next_request_ = 1;
};

}  // namespace ddprun::rendezvous
