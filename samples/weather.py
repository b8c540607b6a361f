"""The quickstart: an agent with one tool, on the model that comes with agentpipe or on any endpoint.

agentpipe chat --local --tool samples.weather:get_weather "What should I wear in Suzhou today?"
python -m samples.weather
"""

from __future__ import annotations

import os

from agentpipe import Agent, ChatOptions, OpenAIChatClient
from agentpipe.local import LocalChatClient

WEATHER = {
    "suzhou": "11 degrees, light rain",
    "paris": "7 degrees, cloudy",
    "lima": "22 degrees, sunny",
    "oslo": "-4 degrees, snow",
}


def get_weather(place: str) -> str:
    """Get the weather of a city."""
    city = place.split(",")[0].strip()
    return f"{city}: {WEATHER.get(city.lower(), '15 degrees, windy')}"


has_endpoint = "OPENAI_API_KEY" in os.environ or "OPENAI_BASE_URL" in os.environ
agent = Agent(
    OpenAIChatClient(os.environ.get("OPENAI_MODEL", "gpt-4o-mini")) if has_endpoint else LocalChatClient(),
    "Answer in one sentence.",
    name="Ada",
    tools=[get_weather],
    # A model as small as the local one has to be told to look; the loop goes back to "auto" after the first call.
    options=None if has_endpoint else ChatOptions(tool_choice="required", temperature=0.0),
)

if __name__ == "__main__":
    print(agent)
    print(agent.run_sync("What should I wear in Suzhou today?"))
