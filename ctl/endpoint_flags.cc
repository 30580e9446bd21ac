// SPDX-License-Identifier: Apache-2.0
#include "ctl/endpoint_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "common/config_texts.h"
#include "common/endpoint.h"
#include "common/env_names.h"
#include "common/error.h"
#include "common/quiet_thread.h"
#include "common/secret.h"
#include "common/text.h"
#include "ctl/commands.h"

namespace ddprun::ctl {
namespace {

constexpr std::chrono::milliseconds kMoment{1'500}, kEachOfSeveral{3'000};
constexpr char kThisHost[] = "127.0.0.1:29400";

// Tells a user at a terminal what a long wait is for.
class WaitNotice {
 public:
  // Prints `line` on stderr after 1.5 s, but only at a terminal. A script has the line that says
  // how it ended.
  explicit WaitNotice(std::string line) {
    if (::isatty(STDERR_FILENO) == 0) return;
    auto body = [this, line = std::move(line)] {
      std::unique_lock lock(mutex_);
      if (over_.wait_for(lock, kMoment, [this] { return is_over_; })) return;
      say(line);
    };
    try {
      thread_ = start_quiet_thread("notice", std::move(body));
    } catch (const Error&) {  // works without the notice
    }
  }

  // Ends at once; no line follows.
  ~WaitNotice() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    over_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  WaitNotice(const WaitNotice&) = delete;
  WaitNotice& operator=(const WaitNotice&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;  // guarded by mutex_
  std::thread thread_;    // only at a terminal
};

// For an endpoint that nobody gave: there may be no rendezvous.
void expect_none(pages::FetchOptions& options) {
  options.is_patient = false;
  options.hint = concat(". Where is the rendezvous? --rdzv-endpoint, ", env::kRdzvEndpoint,
                        " or rdzv_endpoint in ddprun.toml says it");
}

}  // namespace

EndpointFlags::EndpointFlags(CLI::App& command, Fallback fallback) : fallback_(fallback) {
  std::string help =
      "HOST:PORT of the rendezvous; of several, with commas between: the one that leads";
  if (fallback == Fallback::kThisHost) {
    help += concat("; default: that of ddprun.toml, else ", kThisHost);
  }
  command.add_option("--rdzv-endpoint", given_.rdzv_endpoint, help)->envname(env::kRdzvEndpoint);
  // Without the file that --token-file="$FILE" names, all would run without the proof.
  const auto add_file = [&](const char* flag, std::string& path, const char* what) {
    return command.add_option(flag, path, what)->check([](const std::string& given) {
      return std::string(given.empty() ? "no file given" : "");
    });
  };
  add_file("--token-file", given_.token_file, "The rendezvous' token; mode 600")
      ->envname(env::kTokenFile);
  add_file("--tls-ca", given_.tls.ca, "Authority of the rendezvous' certificate (PEM)");
  add_file("--tls-cert", given_.tls.cert, "This side's certificate (PEM), if it wants one");
  add_file("--tls-key", given_.tls.key, "Its key (PEM), mode 600");
}

const ConfiguredEndpoint& EndpointFlags::asked() const {
  if (asked_) return *asked_;
  if (fallback_ == Fallback::kNone) return asked_.emplace(given_);
  asked_ = configured_endpoint(read_config_texts("", current_environment()), given_);
  is_default_ = asked_->rdzv_endpoint.empty();
  if (is_default_) asked_->rdzv_endpoint = kThisHost;
  return *asked_;
}

std::string EndpointFlags::problem() const {
  const std::string problem = parse_servers(asked().rdzv_endpoint, kDefaultRendezvousPort).problem;
  const char* whose =
      given_.rdzv_endpoint.empty() ? "rdzv_endpoint of ddprun.toml, " : "--rdzv-endpoint=";
  if (!problem.empty()) return concat(whose, asked().rdzv_endpoint, ": ", problem);
  return given_.token_file.empty() ? token_variable_problem(current_environment()) : "";
}

pages::FetchOptions EndpointFlags::options_for(const std::string& target) const {
  pages::FetchOptions options;
  options.target = target;
  if (!asked().token_file.empty())
    options.token = Secret::from_flag("--token-file", asked().token_file);
  if (asked().tls.any()) options.tls = security::make_client_context(asked().tls);
  return options;
}

membership::LinkSecurity EndpointFlags::security() const {
  const pages::FetchOptions options = options_for("");
  return {.token = options.token, .tls = options.tls, .program = "ddprunctl"};
}

std::vector<Endpoint> EndpointFlags::endpoints() const {
  if (const std::string wrong = problem(); !wrong.empty()) {
    throw Error(ErrorCode::kInvalidArgument, wrong);
  }
  return parse_servers(asked().rdzv_endpoint, kDefaultRendezvousPort).endpoints;
}

pages::GangClientOptions EndpointFlags::queue_of(const ConfiguredEndpoint& keys) const {
  const auto& [endpoint, token_file, tls] = keys;
  pages::GangClientOptions options;
  options.endpoints =
      endpoint.empty() ? endpoints() : parse_servers(endpoint, kDefaultRendezvousPort).endpoints;
  if (options.endpoints.empty()) {
    throw Error(ErrorCode::kInvalidArgument, concat("endpoint = \"", endpoint, "\": is none"));
  }
  const std::string& token = token_file.empty() ? asked().token_file : token_file;
  const security::TlsFiles& files = tls.any() ? tls : asked().tls;
  const char* flag = token_file.empty() ? "--token-file" : "to.nodes.token_file";
  if (endpoint.empty() && is_default_) expect_none(options);
  if (!token.empty()) options.token = Secret::from_flag(flag, token);
  if (files.any()) options.tls = security::make_client_context(files);
  return options;
}

std::vector<std::string> EndpointFlags::flags_of(const ConfiguredEndpoint& keys) const {
  std::vector<std::string> flags;
  const auto add = [&](const char* flag, const std::string& of_job, const std::string& given) {
    const std::string& value = of_job.empty() ? given : of_job;
    if (!value.empty()) flags.push_back(concat(flag, "=", value));
  };
  const security::TlsFiles& files = keys.tls.any() ? keys.tls : given_.tls;
  add("--rdzv-endpoint", keys.rdzv_endpoint, given_.rdzv_endpoint);
  add("--token-file", keys.token_file, given_.token_file);
  add("--tls-ca", files.ca, "");
  add("--tls-cert", files.cert, "");
  add("--tls-key", files.key, "");
  return flags;
}

std::string EndpointFlags::fetch_page(const std::string& target, Use use) const {
  const auto all = endpoints();
  pages::FetchOptions options = options_for(target);
  options.is_acted_on = use == Use::kActedOn;
  const bool is_one = all.size() == 1;
  if (!is_one) options.timeout = kEachOfSeveral;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count();
  if (is_default_) {
    expect_none(options);
    options.hint +=
        ". A job of --standalone can't be found from outside: start it with "
        "--rdzv-endpoint=localhost:29400 instead";
    return pages::fetch_from_leader(options, all);
  }
  const WaitNotice notice(concat("waiting for an answer of ", asked().rdzv_endpoint, ", ", seconds,
                                 is_one ? " s at most" : " s at most for each"));
  return pages::fetch_from_leader(options, all);
}

pages::Page EndpointFlags::fetch_document() const {
  pages::FetchOptions options = options_for("/");
  options.is_patient = false;
  options.timeout = std::chrono::seconds(2);
  std::string answers;
  for (const Endpoint& endpoint : endpoints()) {
    options.endpoint = endpoint;
    std::string what = to_string(endpoint) + " is a standby";
    try {
      pages::Page page = pages::fetch(options);
      if (!page.is_standby) return page;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInvalidArgument) throw;
      what = error.what();
    }
    answers += (answers.empty() ? "" : "; ") + what;
  }
  throw Error(ErrorCode::kUnavailable, "no rendezvous leads: " + answers);
}

std::string EndpointFlags::fetch_page_within(std::chrono::milliseconds limit,
                                             const std::string& target) const {
  const auto all = endpoints();
  pages::FetchOptions options = options_for(target);
  options.timeout = limit;
  options.is_patient = false;
  options.limit = limit;
  return pages::fetch_from_leader(options, all);
}

}  // namespace ddprun::ctl
