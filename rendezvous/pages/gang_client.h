// SPDX-License-Identifier: Apache-2.0
// A client of a ddprund's queue (docs/nodes.md). Blocking; each call has a deadline.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/endpoint.h"
#include "common/secret.h"
#include "rendezvous/gangs/gang_json.h"
#include "rendezvous/pages/fetch.h"
#include "rendezvous/security/wire.h"

namespace ddprun::pages {

// The caller sets all fields but endpoint, target, method, body and wants_refusals.
struct GangClientOptions : FetchOptions {
  std::vector<Endpoint> endpoints;  // if several, the leader is used
};

// Each call throws as fetch() does, or Error(kInvalidArgument) if the queue refuses. nullopt: the
// queue knows no such gang.
class GangClient {
 public:
  explicit GangClient(GangClientOptions options) : options_(std::move(options)) {}

  // Submits a gang. Repeated calls with the same gang submit it only once.
  gangs::GangNews submit(const gangs::GangSpec& spec) const;
  std::optional<gangs::GangNews> status(const std::string& id) const;
  std::vector<gangs::GangNews> list() const;
  std::optional<gangs::GangNews> cancel(const std::string& id) const;
  // Returns output as soon as there is more than `from` and `seen` say, or after `wait`.
  std::optional<gangs::GangNews> logs(const std::string& id,
                                      const std::vector<gangs::OutputPlace>& from,
                                      std::optional<std::uint64_t> seen,
                                      std::chrono::milliseconds wait) const;

  // Returns the message for a gang that the queue no longer knows.
  static std::string forgotten_text(const std::string& id);

 private:
  Page ask(const std::string& method, const std::string& target, const std::string& body) const;
  Page ask_or_throw(const std::string& method, const std::string& target,
                    const std::string& body) const;
  std::optional<gangs::GangNews> ask_of(const std::string& id, const std::string& method,
                                        const std::string& target) const;

  const GangClientOptions options_;
};

// Reads the output of a gang's nodes from begin to end. Pure: it takes pages and returns whole
// lines.
class GangReader {
 public:
  struct Piece {
    std::size_t node = 0;  // index in the order of the gang's parts
    bool is_err = false;
    std::string text;
  };

  // The arguments for the next page.
  const std::vector<gangs::OutputPlace>& places() const { return places_; }
  std::optional<std::uint64_t> seen() const { return seen_; }

  // Takes a page. Returns whole lines, and parts of lines longer than kMostHeld; at the end all the
  // rest. If it throws Error(kProtocol), it took nothing.
  std::vector<Piece> take(const gangs::GangNews& news);
  // Returns all held parts of unfinished lines, for a caller that asks for no further page.
  std::vector<Piece> take_rest();

  // Returns whether more may be there at once: the last page had output, or nodes that were not
  // asked yet.
  bool has_more() const { return has_more_; }

  // Returns whether the gang has ended, and all readable output was read. troubles() tells what
  // can't be read.
  bool is_over() const { return is_over_; }
  const gangs::GangState& state() const { return state_; }
  const std::vector<std::string>& nodes() const { return nodes_; }
  // Returns why nodes' output was missing in the last page, each reason once.
  std::vector<std::string> troubles() const;

  static constexpr std::size_t kMostHeld = std::size_t{64} << 10;

 private:
  // A node's part of one page, decoded.
  struct Come {
    std::size_t node = 0;
    std::string out, err, reason;
  };
  std::vector<Come> all_of(const gangs::GangNews& news) const;
  void take_lines(std::size_t node, bool is_err, const std::string& bytes, bool to_end,
                  std::vector<Piece>& pieces);
  void take_rest(std::vector<Piece>& pieces);

  std::vector<std::string> nodes_;
  std::vector<gangs::OutputPlace> places_;  // by node
  std::vector<std::string> out_, err_;      // by node; parts of unfinished lines
  std::vector<std::string> troubles_;       // by node; empty: none
  std::optional<std::uint64_t> seen_;
  gangs::GangState state_;
  bool has_more_ = true;
  bool is_over_ = false;
};

}  // namespace ddprun::pages
