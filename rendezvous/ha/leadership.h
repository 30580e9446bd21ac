// SPDX-License-Identifier: Apache-2.0
// Which of several ddprunds leads: the one whose lease in etcd holds the leader's key
// (docs/internals/ha.md has the argument why two can't both act).
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "rendezvous/ha/etcd_client.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/row.h"

namespace ddprun::ha {

struct LeadershipOptions {
  EtcdOptions etcd;
  std::string prefix;             // of all keys, "/ddprun"
  std::chrono::seconds lease{3};  // without a renewal for so long another one may lead
  std::string name;               // HOST:PORT: what the others are told while this one leads
};

// The time from one ddprund's beginning to lead until it doesn't.
struct Term {
  std::int64_t epoch = 0;                        // greater than every earlier term's
  std::unique_ptr<journal::BatchWriter> writer;  // throws Deposed once others may lead
  journal::Content content;                      // what earlier terms left
};

class Leadership {
 public:
  // Called from the io context. Each `leads` is followed by one `over`, but for the last one if
  // this object is destroyed. From then on nothing may be said to agents.
  struct Handlers {
    std::function<void(Term)> leads;
    std::function<void(const std::string& why)> over;
    std::function<void(const std::string& leader)>
        stands_by;                                            // its name; each time that it changes
    std::function<void(const std::string& trouble)> etcd_is;  // empty: it answers again
  };

  // Asks for the leadership until destroyed, with a thread of its own.
  Leadership(boost::asio::io_context& io, LeadershipOptions options, Handlers handlers);
  // Gives it up: another one may lead at once. The writer of its term must be gone.
  ~Leadership();
  Leadership(const Leadership&) = delete;
  Leadership& operator=(const Leadership&) = delete;

  // Ends the term of this epoch, by `over`: its writer was deposed. A later one goes on.
  void resign(std::int64_t epoch, const std::string& why);

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;  // second owners: the thread, what it has posted
  std::thread thread_;
};

}  // namespace ddprun::ha
