// SPDX-License-Identifier: Apache-2.0
#include "rendezvous/http/browser.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>

#include "common/error.h"
#include "common/socket.h"
#include "common/text.h"

namespace ddprun::http {
namespace {

bool is_numeric(const std::string& host) {
  in6_addr address;
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// Returns "::1" for "[::1]:80", "head" for "head:80". Empty: the text is no name, with or without a
// port.
std::string_view without_port(std::string_view host) {
  const bool is_bracketed = host.starts_with('[');
  const std::size_t end = std::min(host.find(is_bracketed ? ']' : ':'), host.size());
  if (is_bracketed && end == host.size()) return {};
  const std::string_view rest = host.substr(end + (is_bracketed ? 1 : 0));
  const bool is_port =
      rest.starts_with(':') && rest.find_first_not_of("0123456789", 1) == std::string_view::npos;
  if (!rest.empty() && !is_port) return {};
  return is_bracketed ? host.substr(1, end - 1) : host.substr(0, end);
}

}  // namespace

// False if the socket was closed meanwhile: nobody gets the answer then. An IPv4 address on a
// listener of both families is a mapped one.
bool is_over_loopback(int socket) {
  try {
    return local_address(socket).is_loopback();
  } catch (const Error&) {
    return false;
  }
}

bool is_of_browser(const Request& request) {
  return request.fields.has("Origin") || request.fields.has("Sec-Fetch-Site");
}

bool is_same_origin(const Request& request) {
  const std::string_view site = request.fields["Sec-Fetch-Site"];
  if (!site.empty() && site != "same-origin" && site != "none") return false;
  if (!request.fields.has("Origin")) return true;
  const std::string_view origin = request.fields["Origin"], asked = request.fields["Host"];
  return !asked.empty() &&
         (origin == concat("http://", asked) || origin == concat("https://", asked));
}

bool is_of_form(const Request& request) {
  const std::string_view field = request.fields["Content-Type"];
  const std::string_view type = field.substr(0, field.find_first_of("; \t"));
  return equals_ignoring_case(type, "text/plain") ||
         equals_ignoring_case(type, "multipart/form-data") ||
         equals_ignoring_case(type, "application/x-www-form-urlencoded");
}

bool names_this_machine(const Request& request, std::string_view own_name) {
  if (!request.fields.has("Host")) return true;
  const std::string_view name = without_port(request.fields["Host"]);
  if (is_numeric(std::string(name)) || equals_ignoring_case(name, "localhost")) return true;
  const std::string_view first = own_name.substr(0, own_name.find('.'));
  return !name.empty() &&
         (equals_ignoring_case(name, own_name) || equals_ignoring_case(name, first));
}

bool names_this_machine(const Request& request) {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) name[0] = 0;
  return names_this_machine(request, name);
}

std::string host_field(const Endpoint& endpoint, int socket) {
  return to_string(is_over_loopback(socket) ? Endpoint{"localhost", endpoint.port} : endpoint);
}

void add_page_fields(std::string_view policy, Fields* fields) {
  fields->add("Content-Security-Policy", policy);
  fields->add("X-Content-Type-Options", "nosniff");
  fields->add("Referrer-Policy", "no-referrer");
  fields->add("Cache-Control", "no-store");
}

bool is_rebound(const Request& request, int socket) {
  return is_over_loopback(socket) && !names_this_machine(request);
}

}  // namespace ddprun::http
