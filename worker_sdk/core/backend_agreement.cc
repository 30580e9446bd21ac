// SPDX-License-Identifier: Apache-2.0
// The offers travel as lines "rank TAB choice TAB device id TAB GPU id TAB reason", appended to one
// key.
#include "worker_sdk/core/backend_agreement.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/nccl/device_identity.h"

namespace ddprun {
namespace {

constexpr char kOffersKey[] = "offers";
constexpr char kArrivedKey[] = "arrived";
constexpr char kVerdictKey[] = "verdict";

std::string rank_text(int rank) { return concat("rank ", rank); }

std::string field_of(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return text;
}

std::string encode(const DeviceOffer& offer) {
  return concat(std::to_string(offer.rank), '\t', to_string(offer.choice), '\t',
                field_of(offer.device_id), '\t', field_of(offer.gpu_id), '\t',
                field_of(offer.reason), '\n');
}

std::vector<DeviceOffer> decode_offers(const std::string& text) {
  std::vector<DeviceOffer> offers;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::array<std::string, 5> field;
    for (auto& one : field) std::getline(fields, one, '\t');
    const auto choice = parse_backend_choice(field[1]);
    if (!choice) continue;
    offers.push_back({std::stoi(field[0]), *choice, field[2], field[3], field[4]});
  }
  return offers;
}

std::string encode(const BackendVerdict& verdict) {
  switch (verdict.kind) {
    case BackendVerdict::Kind::kHost:
      return (verdict.some_have_a_device ? "host, some could\n" : "host\n") + verdict.why;
    case BackendVerdict::Kind::kNccl:
      return "nccl\n" + verdict.why;
    case BackendVerdict::Kind::kRefused:
      return "refused\n" + verdict.why;
  }
  return "";
}

BackendVerdict decode_verdict(const std::string& text) {
  const auto end = std::min(text.find('\n'), text.size());
  const std::string kind = text.substr(0, end);
  const std::string why = end < text.size() ? text.substr(end + 1) : "";
  if (kind == "host") return {BackendVerdict::Kind::kHost, why};
  if (kind == "host, some could") return {BackendVerdict::Kind::kHost, why, true};
  if (kind == "nccl") return {BackendVerdict::Kind::kNccl, why};
  if (kind == "refused") return {BackendVerdict::Kind::kRefused, why};
  throw_error(ErrorCode::kProtocol, "the backend verdict in the store is \"", kind,
              "\": all ranks must run the same version of the program");
}

// Returns why the ranks can't use NCCL, naming the first rank that prevents it; empty: they can.
std::string obstacle(const std::vector<DeviceOffer>& offers) {
  std::map<std::string, int> rank_of_device, rank_of_gpu;
  const bool may_share = nccl::test_gpu().shared;
  for (const auto& offer : offers) {
    if (offer.device_id.empty()) {
      return rank_text(offer.rank) + " has no GPU of its own: " + offer.reason;
    }
    const auto [found, fresh] = rank_of_device.emplace(offer.device_id, offer.rank);
    if (!fresh && !may_share) {
      return rank_text(offer.rank) + " would share its GPU with " + rank_text(found->second);
    }
    if (offer.gpu_id.empty() || may_share) continue;
    const auto [other, is_first] = rank_of_gpu.emplace(offer.gpu_id, offer.rank);
    if (!is_first) {
      return rank_text(offer.rank) + " has a slice (MIG) of the GPU of " +
             rank_text(other->second) + ", and NCCL before 2.30.7 accepts only one rank on a GPU";
    }
  }
  return "";
}

std::string who_is_missing(store::Store& store, int world_size) {
  std::vector<bool> here(static_cast<std::size_t>(world_size), false);
  if (store.check({kOffersKey})) {
    for (const auto& offer : decode_offers(store.get(kOffersKey))) {
      if (offer.rank >= 0 && offer.rank < world_size) {
        here[static_cast<std::size_t>(offer.rank)] = true;
      }
    }
  }
  constexpr std::size_t kMaxNamed = 8;
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!here[static_cast<std::size_t>(rank)]) missing.push_back(rank);
  }
  return first_listed(missing, kMaxNamed);
}

}  // namespace

const char* to_string(BackendChoice choice) {
  constexpr std::array kNames = {"auto", "host", "nccl"};
  return kNames.at(static_cast<std::size_t>(choice));
}

std::optional<BackendChoice> parse_backend_choice(std::string_view text) {
  for (const auto choice : {BackendChoice::kAuto, BackendChoice::kHost, BackendChoice::kNccl}) {
    if (text == to_string(choice)) return choice;
  }
  return std::nullopt;
}

BackendVerdict decide_backend(std::vector<DeviceOffer> offers) {
  if (offers.empty()) return {};
  std::ranges::sort(offers, [](const auto& a, const auto& b) { return a.rank < b.rank; });
  const DeviceOffer& first = offers.front();
  for (const auto& offer : offers) {
    if (offer.choice == first.choice) continue;
    return {BackendVerdict::Kind::kRefused,
            "the ranks chose different backends: " + rank_text(first.rank) + " \"" +
                to_string(first.choice) + "\", " + rank_text(offer.rank) + " \"" +
                to_string(offer.choice) + "\"; give every rank the same one"};
  }
  if (first.choice == BackendChoice::kHost) return {BackendVerdict::Kind::kHost, ""};
  const std::string problem = obstacle(offers);
  if (problem.empty()) return {BackendVerdict::Kind::kNccl, ""};
  if (first.choice == BackendChoice::kNccl) {
    return {BackendVerdict::Kind::kRefused,
            "backend \"nccl\" can't be used: " + problem +
                "; start at most one rank per GPU, or choose backend \"host\" or \"auto\""};
  }
  const bool some_have = std::ranges::any_of(
      offers, [](const DeviceOffer& offer) { return !offer.device_id.empty(); });
  return {BackendVerdict::Kind::kHost, "using the host backend, not NCCL: " + problem, some_have};
}

BackendVerdict agree_on_backend(store::Store& store, int world_size, const DeviceOffer& offer) {
  store.append(kOffersKey, encode(offer));
  // The offer is stored before it is counted, so the last rank to count sees them all.
  if (store.add(kArrivedKey, 1) == world_size) {
    store.set(kVerdictKey, encode(decide_backend(decode_offers(store.get(kOffersKey)))));
  }
  BackendVerdict verdict;
  try {
    verdict = decode_verdict(store.get(kVerdictKey));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kTimeout) throw;
    const std::string missing = who_is_missing(store, world_size);
    throw_error(ErrorCode::kTimeout, "rank ", offer.rank,
                ": the ranks did not agree on a backend within ", store.timeout().count(), " ms",
                missing.empty() ? "; all ranks came" : "; never came: rank ", missing);
  }
  if (verdict.kind == BackendVerdict::Kind::kRefused) throw_invalid(verdict.why);
  return verdict;
}

}  // namespace ddprun
