// SPDX-License-Identifier: Apache-2.0
// The values of the flags about workers' output: which streams, which ranks, which lines. Pure.
//
// Every parse function returns the problem ("wants …"); empty: none, `to` is set.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::agent {

enum class OutputStream { kStdout, kStderr };

// Some of a worker's two streams.
struct StreamSet {
  bool out = false;
  bool err = false;

  bool has(OutputStream stream) const { return stream == OutputStream::kStdout ? out : err; }
  friend bool operator==(const StreamSet&, const StreamSet&) = default;
};

// Of each worker of this node: the value of --redirects and --tee.
struct StreamSpec {
  StreamSet all;  // of workers that by_local_rank doesn't name
  std::map<int, StreamSet> by_local_rank;

  friend bool operator==(const StreamSpec&, const StreamSpec&) = default;
  StreamSet of(int local_rank) const;
  bool empty() const;  // no stream of any worker
  int largest_rank() const { return by_local_rank.empty() ? -1 : by_local_rank.rbegin()->first; }
};

// "0" … "3" (none, stdout, stderr, both) for all workers, or "0:1,12:3" by local rank: the workers
// that aren't named have none.
std::string parse_stream_spec(std::string_view text, StreamSpec& to);

// Ranks from first to last, several times.
class RankSet {
 public:
  bool empty() const { return ranges_.empty(); }
  bool has(int rank) const;
  int largest() const;  // −1: empty
  void add(int first, int last) { ranges_.emplace_back(first, last); }
  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  std::vector<std::pair<int, int>> ranges_;
};

// "0,3,8-15". An empty text is the empty set.
std::string parse_rank_set(std::string_view text, RankSet& to);

// Texts separated by commas; two commas are one in a text. Empty texts, which would match every
// line, are left out.
std::vector<std::string> parse_line_filters(std::string_view text);

// "1048576", "64K", "100M", "2G" (powers of 1024; "B" or "iB" may follow the letter). 0: no limit.
std::string parse_size(std::string_view text, std::uint64_t& to);

}  // namespace ddprun::agent
