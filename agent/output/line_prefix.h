// SPDX-License-Identifier: Apache-2.0
// The prefix of each line of a worker's output. Pure.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// The values for the prefix of each line of a worker's output.
struct PrefixValues {
  std::string role_name;
  std::string hostname;
  int local_rank = 0;
  int rank = 0;        // negative: a spare's worker, whose rank is shown as "spare"
  int node_rank = -1;  // negative: a spare's worker
};

class LinePrefix {
 public:
  // The first is torchrun's, for tee'd streams. The second is for other streams of several workers.
  static constexpr char kTeeTemplate[] = "[${role_name}${local_rank}]:";
  static constexpr char kRankTemplate[] = "[${rank}] ";

  // Parses a template as Python's string.Template does: ${name} or $name, $$ for a dollar; an
  // unknown name stays as it is. Names: role_name, local_rank, rank, hostname, node_rank, and time
  // (HH:MM:SS, local).
  explicit LinePrefix(std::string_view text);

  bool has_time() const { return has_time_; }
  // `now` is in seconds since 1970; used only where has_time().
  std::string text(const PrefixValues& values, std::time_t now) const;

  // Returns `text` in a colour of its own for each rank, for a terminal.
  static std::string coloured(const std::string& text, int rank);

 private:
  enum class Macro { kText, kRoleName, kLocalRank, kRank, kHostname, kNodeRank, kTime };
  struct Part {
    Macro macro;
    std::string text;  // of kText
  };
  void add(std::string_view name, std::string_view as_written);
  void add_text(std::string_view text);

  std::vector<Part> parts_;
  bool has_time_ = false;
};

}  // namespace ddprun::agent
