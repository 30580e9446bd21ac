// SPDX-License-Identifier: Apache-2.0
// The output of gangs on this node: it is in files of a directory for each gang, and is read from
// elsewhere (docs/internals/nodes.md, "output"). io thread only.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/unique_fd.h"
#include "rendezvous/gangs/node_messages.h"

namespace ddprun::launcher {

class GangOutput {
 public:
  // `directory` is absolute; it is made where it is missing. `answer` is called once for each
  // request, at once or later from the io context. Throws Error(kInvalidArgument) if no file can be
  // made there.
  GangOutput(boost::asio::io_context& io, std::string directory, std::string node,
             std::function<void(const gangs::OutputAnswer&)> answer);
  ~GangOutput();  // no call follows

  struct Files {
    UniqueFd out, err;
  };
  // Makes the files of a gang that begins. Throws Error(kSystem).
  Files open(const std::string& gang) const;

  // Removes the output of gangs for which `runs` is false, if it was last written longer than
  // `time` ago.
  void remove_older_than(std::chrono::milliseconds time,
                         const std::function<bool(const std::string& gang)>& runs) const;

  // Returns why some output of `gang` may be lost, and how much of it is kept; empty: no loss is
  // known.
  std::string trouble(const std::string& gang) const;

  // Answers a request. `runs`: the gang may print more. Returns whether it prints no more and all
  // was read before. If its files can't be read while it runs, a reader who is ready to wait is
  // answered at the end of its time. If answered at once, the reader would ask again and again.
  bool read(const gangs::OutputRequest& request, bool runs);
  // Called when the gang prints no more: readers who wait for it are answered.
  void ended(const std::string& gang);

  static constexpr std::size_t kMaxWaiting = 1'000;

 private:
  struct Waiting {
    gangs::OutputRequest request;
    int watch = -1;
    std::unique_ptr<boost::asio::steady_timer> timer;
  };

  std::string folder(const std::string& gang) const;
  gangs::OutputAnswer read_now(const gangs::OutputRequest& request) const;
  void await_changes();
  void look(const std::string& gang);
  void end_watch(int watch);
  void finish(std::uint64_t number, const gangs::OutputAnswer& answer);

  const std::string directory_, node_;
  const std::function<void(const gangs::OutputAnswer&)> answer_;
  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor changes_;  // inotify(7)
  alignas(8) std::array<char, 4096> buffer_;
  std::map<std::uint64_t, Waiting> waiting_;
  std::map<int, std::string> watched_;  // watch → gang
  std::uint64_t next_number_ = 1;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();  // for waits that outlive this
};

}  // namespace ddprun::launcher
