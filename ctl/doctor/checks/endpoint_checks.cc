// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

#include "common/log.h"
#include "ctl/doctor/checks.h"
#include "ctl/doctor/judge.h"

namespace ddprun::doctor {
namespace {

bool has_page(const Facts& facts) {
  return facts.rendezvous.answer && facts.rendezvous.answer->failure.empty();
}

Outcome no_page(const Facts& facts) {
  return facts.rendezvous.answer ? skipped("the rendezvous' status isn't known")
                                 : no_answer(facts.rendezvous, facts.endpoint);
}

Outcome judge_endpoint(const Facts& facts, const Thresholds&) {
  if (!facts.rendezvous.answer) return no_answer(facts.rendezvous, facts.endpoint);
  if (has_page(facts)) return ok(one_line(facts.endpoint) + " answers", "it answers");
  return {Verdict::kFail, one_line(facts.rendezvous.answer->failure), "it answers",
          "is ddprund running there, and is its port open? ddprunctl status --rdzv-endpoint=…"};
}

Outcome judge_endpoint_clock(const Facts& facts, const Thresholds& limits) {
  if (!has_page(facts)) return no_page(facts);
  const auto& skew = facts.rendezvous.answer->skew_seconds;
  if (!skew) return skipped("the rendezvous doesn't tell its time");
  const double most = limits.at("endpoint_clock.warn");
  char text[64];
  std::snprintf(text, sizeof text, "its clock is %.1f s %s", std::abs(*skew),
                *skew >= 0 ? "before ours" : "behind ours");
  Outcome outcome = ok(text, concat("at most ", most, " s apart"));
  if (std::abs(*skew) <= most) return outcome;
  outcome.verdict = Verdict::kWarn;
  outcome.fix = "chronyc tracking, or timedatectl, on both";
  return outcome;
}

Outcome judge_endpoint_version(const Facts& facts, const Thresholds&) {
  if (!has_page(facts)) return no_page(facts);
  const std::string theirs = facts.rendezvous.answer->version, ours = DDPRUN_VERSION;
  if (theirs.empty()) return skipped("the rendezvous doesn't tell its version");
  Outcome outcome = ok("it is " + one_line(theirs) + ", this is " + ours, ours);
  if (theirs == ours) return outcome;
  const bool same_major = theirs.substr(0, theirs.find('.')) == ours.substr(0, ours.find('.'));
  outcome.verdict = same_major ? Verdict::kWarn : Verdict::kFail;
  outcome.fix = "install the same version of ddprun on all nodes";
  return outcome;
}

}  // namespace

std::vector<Check> endpoint_checks() {
  static constexpr char kGroup[] = "endpoint";
  return {
      {"endpoint", kGroup, "GET /v1/status of --rdzv-endpoint",
       "a node that doesn't reach the rendezvous is in no job", judge_endpoint},
      {"endpoint_clock", kGroup, "its Date",
       "logs of several nodes can't be put in order, certificates expire early or late",
       judge_endpoint_clock},
      {"endpoint_version", kGroup, "its version",
       "nodes and rendezvous of different versions may not understand each other",
       judge_endpoint_version},
  };
}

}  // namespace ddprun::doctor
